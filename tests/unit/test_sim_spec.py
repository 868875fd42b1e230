"""What can be simulated, and what is refused before anything is written."""

from __future__ import annotations

import pytest

from nvc.base.errors import InputError
from nvc.testing.sim.models import MODELS
from nvc.testing.sim.spec import SimSpec, gpus_of


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_says_that_it_is_simulated(model: str) -> None:
    gpus = gpus_of(SimSpec(gpus=32, model=model))
    assert all(gpu.name.endswith("(simulated)") for gpu in gpus)
    assert len({gpu.bus_id for gpu in gpus}) == len({gpu.uuid for gpu in gpus}) == 32


def test_profiles_have_their_sizes() -> None:
    gpu = gpus_of(SimSpec(mig=("3g.40gb,2x2g.20gb",)))[0]
    assert [(mig.profile, mig.gpu_instance) for mig in gpu.mig] == [
        ("3g.40gb", 1),
        ("2g.20gb", 3),
        ("2g.20gb", 4),
    ]
    assert sum(mig.memory for mig in gpu.mig) <= gpu.memory
    assert gpu.mig[0].memory > 39 << 30
    seven = gpus_of(SimSpec(mig=("7x1g.10gb",)))[0].mig
    assert [mig.gpu_instance for mig in seven] == list(range(7, 14))
    assert gpus_of(SimSpec(mig=("7g.80gb",)))[0].mig[0].gpu_instance == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "h1000"}, "unknown; models: h100"),
        ({"gpus": 33}, "not between 0 and 32"),
        ({"driver_version": "580.1/../x"}, "not digits and dots"),
        ({"cuda_version": "13"}, "not MAJOR.MINOR"),
        ({"libdir": "relative"}, "not a plain absolute path"),
        ({"libdir": "/usr/../lib"}, "not a plain absolute path"),
        ({"libdir": "/"}, "not a plain absolute path"),
        ({"cache": "old"}, "not new, combined or none"),
        ({"gpus": 3, "mig": ("", "")}, "layouts for 3 GPUs"),
        ({"mig": ("8x1g.10gb",)}, "no such profile"),
        ({"mig": ("1g.11gb",)}, "no such profile; profiles: 1g.10gb"),
        ({"mig": ("4g.40gb,4g.40gb",)}, "needs 8 of 7 compute slices"),
        ({"mig": ("3x3g.40gb",)}, "needs 9 of 7 compute slices and 12 of 8"),
        ({"mig": ("3g.40gb,3g.40gb,1g.20gb",)}, "10 of 8 memory slices"),
        ({"model": "t4", "mig": ("1g.10gb",)}, "not supported by the model; Tesla T4 has no MIG"),
        ({"gpus": 2, "minors": (0,)}, "not one different number for each GPU"),
        ({"gpus": 2, "minors": (1, 1)}, "not one different number for each GPU"),
        ({"minors": (32,)}, "not between 0 and 31"),
        ({"imex_channels": (2048,)}, "not between 0 and 2047"),
        ({"memory": 1 << 20}, "not between"),
    ],
)
def test_the_impossible_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        gpus_of(SimSpec(**fields))  # type: ignore[arg-type]
    assert message in str(caught.value)

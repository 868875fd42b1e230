"""What keeps a node's ResourceSlices as they should be, while others change them and the API server fails."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import until
from support.apiserver import CLOSE, HANG, SLICES, ApiServer
from support.facts import facts, gpu
from support.kubelet import DRIVER, NODE

from nvc.base.errors import InputError, NvcError
from nvc.kubernetes.api.access import by_kubeconfig
from nvc.kubernetes.api.client import Api, Server
from nvc.kubernetes.api.publish import Publisher
from nvc.kubernetes.claims.devices import Device, devices_of
from nvc.kubernetes.health.board import Problem

#: Seconds; nothing here comes about because of the periodic look.
NEVER = 3600.0
GPU = gpu(0, "GPU-00000000-0000-0000-0000-000000000000", memory=81920, name="NVIDIA H100 80GB HBM3")
DEVICES = devices_of(facts(gpus=(GPU,)), {}, {})


class Told(list[NvcError]):
    """The errors that were told."""

    def __call__(self, error: NvcError | None) -> None:
        if error is not None:
            self.append(error)


def server_of(api: ApiServer) -> Server:
    return by_kubeconfig(api.kubeconfig())


def stop(publisher: Publisher) -> None:
    publisher.stop()
    publisher.api.close()


def publisher_of(
    api: ApiServer, told: Told, server: Callable[[ApiServer], Server] = server_of, pause: float = 0.2
) -> Publisher:
    """One that has begun. To be ended by `stop`."""
    found = Publisher(Api(lambda: server(api), "nvc-test", timeout=2.0), DRIVER, NODE, told, NEVER, pause)
    found.want(DEVICES)
    found.start()
    return found


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def publisher(api: ApiServer, told: Told) -> Iterator[Publisher]:
    """One that has published, and watches."""
    found = publisher_of(api, told)
    api.wait(lambda: api.slices() and api.watches)
    yield found
    stop(found)


def path_of(slice: dict[str, Any]) -> str:
    return f"{SLICES}/{slice['metadata']['name']}"


def asked(api: ApiServer, *methods: str) -> list[str]:
    """The methods of the requests so far, of those given: LIST is a GET of all slices."""
    found = ["LIST" if one == f"GET {SLICES}" else one.partition(" ")[0] for one in api.requests]
    return [one for one in found if one in methods]


def until_read(publisher: Publisher, api: ApiServer) -> None:
    """Wait until the watch has told of all there is, and the publisher was woken where that is news."""
    until(lambda: publisher.watch.version == str(api.version))


def devices(effect: str) -> tuple[Device, ...]:
    """The node's, one of them with a taint."""
    return (DEVICES[0].replace(problems=(Problem("xid", "79", "Xid 79", effect == "NoExecute"),)),)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "devices": lambda slice: slice["spec"]["devices"][0].update(name="gpu-7"),
    "capacity": lambda slice: slice["spec"]["devices"][0]["capacity"]["cores"].update(value="900"),
    "digest": lambda slice: slice["metadata"].update(annotations={}),
    "owner": lambda slice: slice["metadata"].update(ownerReferences=[]),
}


def meaning(slice: dict[str, Any]) -> tuple[Any, ...]:
    """What of an object must be as the plugin wrote it; other devices mean another generation of the pool."""
    spec = {**slice["spec"], "pool": {**slice["spec"]["pool"], "generation": 0}}
    return spec, bool(slice["metadata"].get("annotations")), slice["metadata"].get("ownerReferences")


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_slice_is_put_back(publisher: Publisher, api: ApiServer, change: str) -> None:
    (slice,) = api.slices()
    before = meaning(slice)
    other = json.loads(json.dumps(slice))
    CHANGES[change](other)
    api.put(path_of(slice), other)
    api.wait(lambda: [meaning(one) for one in api.slices()] == [before])


def test_a_removed_slice_is_put_back_again_and_again(publisher: Publisher, api: ApiServer) -> None:
    """But not at once any more, when somebody goes on removing it: after pauses that grow."""
    times = []
    for _ in range(5):
        (slice,) = api.wait(api.slices)
        begin = time.monotonic()  # the pause may begin before `remove` returns
        api.remove(path_of(slice))
        api.wait(api.slices)
        times.append(time.monotonic() - begin)
    assert all(took >= least for took, least in zip(times, (0.1, 0.2, 0.4, 0.8, 1.6))), times
    assert asked(api, "LIST", "PUT", "POST") == ["LIST", "POST"] * 6


def test_a_slice_that_is_too_many_goes(publisher: Publisher, api: ApiServer) -> None:
    (slice,) = api.slices()
    other = json.loads(json.dumps(slice))
    other["metadata"] = {"name": "made-by-another"}
    api.put(f"{SLICES}/made-by-another", other)
    api.wait(lambda: len(api.slices()) == 1)
    assert api.slices()[0]["metadata"]["name"] == slice["metadata"]["name"]


def test_slices_of_another_node_are_none_of_its_business(publisher: Publisher, api: ApiServer) -> None:
    """Nor is what this program itself writes a reason to look."""
    (slice,) = api.slices()
    other = json.loads(json.dumps(slice))
    other["metadata"], other["spec"]["nodeName"] = {"name": "other"}, "node-b"
    api.put(f"{SLICES}/other", other)
    for count, effect in enumerate(("NoSchedule", "NoExecute", "NoSchedule"), start=1):
        publisher.want(devices(effect))
        api.wait(lambda count=count: asked(api, "PUT") == ["PUT"] * count)
        until_read(publisher, api)
    api.remove(f"{SLICES}/other")
    api.remove(path_of(slice))
    api.wait(lambda: asked(api, "POST") == ["POST"] * 2)
    assert asked(api, "LIST", "PUT", "POST") == ["LIST", "POST", *["LIST", "PUT"] * 3, "LIST", "POST"]


def test_a_node_that_was_made_anew_owns_its_slices(publisher: Publisher, api: ApiServer) -> None:
    """Slices of the old one are collected as garbage, and would be again and again."""
    (slice,) = api.slices()
    del api.objects[f"/api/v1/nodes/{NODE}"]
    api.node(NODE)
    api.remove(path_of(slice))
    (new,) = api.wait(api.slices)
    (owner,) = new["metadata"]["ownerReferences"]
    assert owner["uid"] == api.objects[f"/api/v1/nodes/{NODE}"]["metadata"]["uid"]


@pytest.mark.parametrize("known", [True, False], ids=["known", "gone"])
def test_changes_while_there_is_no_watch(publisher: Publisher, api: ApiServer, known: bool) -> None:
    """The next one tells of them; or the API server says that it does not know them any more, by 410."""
    api.fail("WATCH", 503)
    api.end_watches()
    api.wait(lambda: not api.watches)
    (slice,) = api.slices()
    api.remove(path_of(slice))
    if not known:
        api.compact()
    api.fail("", 0)
    api.wait(api.slices)


@pytest.mark.parametrize("status", [410, 429, 500, 503, CLOSE])
def test_a_watch_that_cannot_begin_is_tried_again(api: ApiServer, told: Told, status: int) -> None:
    api.make_up("WATCH", status, status)
    publisher = publisher_of(api, told)
    api.wait(lambda: api.watches)
    stop(publisher)
    assert len(told) == (status != 410)  # that is settled by another list, and the same error is told once
    assert asked(api, "LIST") == ["LIST"] * (3 if status == 410 else 1)


LINES = {
    "no JSON": b"what\n",
    "no event": b"[1, 2]\n",
    "no object": b'{"type": "MODIFIED"}\n',
    "another shape": b'{"type": "MODIFIED", "object": {"metadata": {"name": [], "ownerReferences": 7}}}\n',
    "an error": b'{"type": "ERROR", "object": {"code": 500, "message": "made up"}}\n',
}


def test_a_list_of_another_shape_is_told_and_asked_for_again(api: ApiServer, told: Told) -> None:
    api.put(f"{SLICES}/odd", {"metadata": {"name": "odd"}, "spec": {"nodeName": NODE, "driver": DRIVER, "pool": 7}})
    publisher = publisher_of(api, told)
    until(lambda: told)
    assert "AttributeError" in str(told[0])
    api.remove(f"{SLICES}/odd")
    api.wait(api.slices)
    stop(publisher)


@pytest.mark.parametrize("line", LINES)
def test_after_what_is_no_event_of_a_watch_comes_another_list(
    publisher: Publisher, api: ApiServer, line: str
) -> None:
    (slice,) = api.slices()
    api.say(LINES[line])
    api.wait(lambda: asked(api, "LIST", "WATCH")[-4:] == ["LIST", "WATCH", "LIST", "WATCH"])
    api.remove(path_of(slice))
    api.wait(api.slices)


def test_a_bookmark_is_where_the_next_watch_begins(publisher: Publisher, api: ApiServer) -> None:
    """Without it, versions that are long gone would need another list."""
    (slice,) = api.slices()
    api.node("node-b")
    api.bookmark()
    until_read(publisher, api)
    api.compact()
    api.end_watches()
    api.wait(lambda: asked(api, "WATCH") == ["WATCH"] * 2 and api.watches)
    api.remove(path_of(slice))
    api.wait(lambda: asked(api, "POST") == ["POST"] * 2)
    assert asked(api, "LIST") == ["LIST"] * 2


def test_an_api_server_that_ends_watches_at_once_is_not_asked_without_pause(api: ApiServer, told: Told) -> None:
    api.watch_seconds = 0
    publisher = publisher_of(api, told)
    api.wait(lambda: len(asked(api, "WATCH")) == 5)
    stop(publisher)
    assert asked(api, "LIST") == ["LIST"] and not told
    times = [when for when, one in zip(api.when, api.requests) if one.startswith("WATCH")]
    gaps = [after - before for before, after in zip(times, times[1:])]
    assert all(gap >= least for gap, least in zip(gaps, (0.1, 0.2, 0.4, 0.8))), gaps


def test_a_watch_that_nobody_ends_does(publisher: Publisher, api: ApiServer) -> None:
    """A host that is gone says nothing; the client knows how long a watch was to last."""
    publisher.watch.seconds = 0.1
    api.watch_seconds = NEVER
    api.end_watches()
    api.wait(lambda: len(asked(api, "WATCH")) == 3)


def test_it_does_without_the_right_to_watch(api: ApiServer, told: Told) -> None:
    """What it is told of is published as before; and the reason is told once."""
    api.fail("WATCH", 403)
    publisher = publisher_of(api, told, pause=0.05)
    api.wait(lambda: len(asked(api, "WATCH")) == 3)
    publisher.want(devices("NoSchedule"))
    api.wait(lambda: asked(api, "PUT") == ["PUT"])
    stop(publisher)
    (error,) = told
    assert "HTTP 403" in str(error) and "resourceslices" in str(error)


@pytest.mark.parametrize("state", ["watching", "in a pause", "waiting for an answer"])
def test_it_ends_when_it_is_told_to(api: ApiServer, told: Told, state: str) -> None:
    if state != "watching":
        api.fail("WATCH", HANG if state == "waiting for an answer" else 503)
    publisher = publisher_of(api, told, pause=NEVER)
    api.wait(lambda: asked(api, "WATCH"))
    if state == "watching":
        until(lambda: publisher.watch.following)
    elif state == "in a pause":
        until(lambda: told)
    stop(publisher)
    assert not publisher.running and not publisher.watch.following
    count = len(api.requests)
    for slice in api.slices():
        api.remove(path_of(slice))
    assert len(api.requests) == count


def test_a_token_that_cannot_be_read_for_a_while(api: ApiServer, told: Told) -> None:
    """Is told, and read again."""
    problem = InputError("read", "/token", "not there")
    left = [problem, problem]

    def broken(of: ApiServer) -> Server:
        server = server_of(of)

        def token() -> str:
            if left:
                raise left.pop()
            return server.token()

        return Server(server.host, server.port, server.context, token)

    publisher = publisher_of(api, told, broken)
    api.wait(lambda: api.slices() and api.watches)
    stop(publisher)
    assert told == [problem, problem]

PYTHON ?= python3
VENV := .venv

.PHONY: native
native: $(VENV)/.ready
	$(VENV)/bin/python setup.py -q build_ext --inplace

$(VENV)/.ready: setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q cffi click pyelftools pytest hypothesis ruff mypy setuptools wheel types-cffi types-setuptools python-prctl
	touch $@

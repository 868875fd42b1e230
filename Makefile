# nvc: `make help` lists what can be made.
#
# The checkout, PREFIX and DESTDIR may lie under a path with spaces. Make splits names at spaces, so targets and
# prerequisites are relative, $(BUILD) too; absolute paths appear in recipes alone, quoted. $(abspath) is not used.

# A distribution's own interpreter belongs to root, as the launcher demands of what root runs, and starts fastest.
PYTHON  ?= /usr/bin/python3
PREFIX  ?= /usr/local
DESTDIR ?=
CFLAGS  ?= -O2
# Only clang compiles for the kernel's virtual machine on every distribution that nvc is built on.
CLANG   ?= clang

VENV   := .venv
BUILD  := build
STAGE  := $(BUILD)/stage
RUN    := $(VENV)/bin/python
WARN   := -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wshadow -Werror
LAUNCHER := $(wildcard native/launcher/*.c native/launcher/*/*.c)
# What the CDI hook has in common with nvc/_syscalls: the applier, and the steps that it applies.
LAUNCHER += $(filter-out %/private.c,$(wildcard native/core/apply/*.c)) $(wildcard $(patsubst %,native/core/%/*.c,bpf files ldcache steps))
LAUNCHER_FLAGS = -Inative/launcher $(addprefix -Inative/core/,apply bpf files ldcache steps) -DNVC_VERSION='$(shell sed -n 's/^__version__ = //p' nvc/__init__.py)'
STATIC := -static
SPIN := $(addprefix native/spin/,spin.c driver.c options.c) native/simdriver/tools/start.c
HARDEN := -fstack-protector-strong -D_FORTIFY_SOURCE=2 -Wl,-z,noexecstack

.DEFAULT_GOAL := help
.PHONY: help setup build native tracer stubs stage man simdriver shim install uninstall demo test test-elsewhere nightly nightly-shares nightly-builds nightly-packages nightly-explore nightly-faults bench bundle packages image chart tables clients test-kubernetes test-engines fuzz faults stress clean

# What cannot be made, for lack of rights, is said before anything is built.
WHY_NOT := $(shell packaging/can-make "$(DESTDIR)$(PREFIX)" $(MAKECMDGOALS))
$(if $(WHY_NOT),$(error $(WHY_NOT)))

help: ## this list
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / { line = sprintf("%-15s", $$1); count = split($$2, words, " "); \
	    for (i = 1; i <= count; i++) { if (length(line words[i]) > 79) { print line; line = sprintf("%15s", "") } \
	        line = line " " words[i] } print line }' $(MAKEFILE_LIST)

setup: $(BUILD)/.packages-test $(VENV)/.ready ## install missing packages (apt, as root) and the Python environment

$(BUILD)/.packages-%: packaging/apt-packages.txt packaging/setup
	@mkdir -p $(BUILD)
	packaging/setup build $*
	@touch $@

$(VENV)/.ready: packaging/requirements.txt | $(BUILD)/.packages-build
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "nvc needs Python 3.10 or newer: make PYTHON=...")'
	@[ -x $(RUN) ] || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=packaging/requirements.txt $(RUN) -m pip install -q --disable-pip-version-check --use-pep517 \
	    -r packaging/requirements.txt
	@touch $@

build: stage ## everything, laid out in build/stage around this checkout's Python code

native: nvc/_syscalls.abi3.so ## the C core (nvc/_syscalls)

nvc/_syscalls.abi3.so: $(wildcard native/core/* native/core/*/*) $(VENV)/.ready
	$(RUN) setup.py -q build_ext --inplace
	@touch $@

# The tracer for both machines, flattened: it lies beside the code, and every installation has it.
TRACERS := $(foreach machine,x86_64 aarch64,nvc/tracer-$(machine).bin)

tracer: $(TRACERS)

$(TRACERS): nvc/tracer-%.bin: $(wildcard native/tracer/*) $(VENV)/.ready
	CLANG="$(CLANG)" $(RUN) native/tracer/build.py $* $@

# Messages of kubelet's interfaces, for nvc-kubelet-plugin, and of NRI, for nvc-nri.
stubs: $(BUILD)/.stubs

$(BUILD)/.stubs: $(wildcard nvc/kubernetes/protocol/*.proto nvc/frontends/nri/protocol/*.proto) $(VENV)/.ready
	$(RUN) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(filter %.proto,$^)
	@touch $@

$(BUILD)/launcher: $(LAUNCHER) $(wildcard native/launcher/*/*.h native/core/*/*.h nvc/__init__.py) | $(BUILD)/.packages-build
	$(CC) $(WARN) $(CFLAGS) $(HARDEN) $(LAUNCHER_FLAGS) $(STATIC) -o $@ $(filter %.c,$^)

# For containers too, whatever their C library: the simulated driver's old symbols and entry point.
$(BUILD)/nvc-spin: $(SPIN) native/spin/spin.h native/simdriver/common/glibc.h | $(BUILD)/.packages-build
	$(CC) $(WARN) -include native/simdriver/common/glibc.h $(CFLAGS) $(HARDEN) -fPIE -pie -nostartfiles -Wl,-z,relro,-z,now \
	    -o $@ $(SPIN) -Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0

simdriver: | $(BUILD)/.packages-build ## the simulated driver's libraries
	@mkdir -p $(BUILD)/simdriver
	@$(MAKE) -s --no-print-directory -C native/simdriver OUT=../../$(BUILD)/simdriver

shim: | $(BUILD)/.packages-build ## the libcuda and libnvidia-ml of containers with a slice
	@mkdir -p $(BUILD)/vgpu
	@$(MAKE) -s --no-print-directory -C native/vgpu OUT=../../$(BUILD)/vgpu

stage: native tracer stubs $(STAGE)/lib/nvc/launch.conf simdriver shim
	@$(RUN) packaging/shim.py $(BUILD)/vgpu $(STAGE)/lib/nvc/vgpu
	@$(RUN) -m compileall -q nvc cli hooks

$(STAGE)/lib/nvc/launch.conf: $(BUILD)/launcher $(BUILD)/nvc-spin packaging/tree.py $(VENV)/.ready
	$(RUN) packaging/tree.py "$(CURDIR)/$(STAGE)" --links --build $(BUILD)

install: stage man ## copy it all to $(DESTDIR)$(PREFIX), compiled, owned by root
	$(RUN) packaging/tree.py "$(PREFIX)" --destdir "$(DESTDIR)" --build $(BUILD)

uninstall: ## remove what `make install` with the same PREFIX and DESTDIR put there; FORCE=1: below running containers too
	@$(PYTHON) packaging/uninstall.py "$(PREFIX)" --destdir "$(DESTDIR)" $(if $(FORCE),--force)

man: stage ## man pages and completion scripts, in build/man and build/completions
	@$(RUN) packaging/manpages.py $(BUILD) $(STAGE)/lib/nvc/python

demo: stage ## a container with two simulated H100s, run by runc
	@packaging/demo/run

# Each process of tests has a /run/nvc of its own. A file's tests run in one process, one after another.
# What pytest makes of them is kept.
PYTEST := PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -q
# Tests wait for programs about half of the time.
JOBS   ?= $(shell expr 2 \* $$(nproc))

test: $(BUILD)/.packages-test stage ## every quick check: style, types, C warnings, unit, kernel, native and engine tests
	$(PYTEST) --processes $(JOBS) $(TESTS)

# What the README and CONTRIBUTING.md begin with.
ELSEWHERE := "make demo" "make test" "make test-kubernetes"

test-elsewhere: ## the quick checks in a clone below /srv, by clocks that have just begun; then again, with busy processors
	@bash tests/support/elsewhere.sh $(ELSEWHERE)
	@bash tests/support/elsewhere.sh --busy $(ELSEWHERE)

nightly: $(BUILD)/.packages-test stage ## what takes long or measures wall time: shares, builds, packages, faults, fuzzing, stress; an hour at most
	@$(MAKE) -j1 -k --no-print-directory nightly-shares nightly-packages nightly-explore stress fuzz nightly-faults

# What measures wall time is alone.
nightly-shares: $(BUILD)/.packages-test stage
	$(PYTEST) -m nightly tests/adversary tests/native tests/kernel tests/unit

# Other compilers' warnings, what `make install` makes, `bench together`, nvcd's page in a browser, and cases under
# sanitizers that `make test` has without. They find nothing in most changes, and take processors.
nightly-builds: $(BUILD)/.packages-test $(BUILD)/.packages-browser stage
	$(PYTEST) --processes $(JOBS) -m nightly tests/unit/test_lint.py tests/native/test_vgpu_build.py \
	    tests/native/test_install.py tests/native/test_uninstall.py tests/kernel/test_bench_together.py \
	    tests/kernel/test_nvcd_page_browser.py \
	    tests/native/test_simdriver_cases.py tests/native/test_simrm.py tests/native/test_vgpu_hostile.py \
	    tests/native/test_vgpu_memory.py tests/native/test_vgpu_pacer.py tests/adversary/test_memory.py

# The documentation's longer pages, too. What the README promises in minutes is alone.
nightly-packages: $(BUILD)/.packages-test stage
	$(PYTEST) --processes 2 -m "nightly and not engines" --ignore=tests/engines/test_readme.py tests/engines
	$(PYTEST) -m "nightly and not engines" tests/engines/test_readme.py

nightly-explore: $(BUILD)/.packages-test stage
	NVC_EXPLORE=1 $(PYTEST) --processes $(JOBS) tests/unit tests/kernel/test_cgroup_model.py \
	    tests/native/test_launcher_trust.py tests/native/test_simdriver_description.py \
	    $(wildcard tests/native/test_ldcache_merge*.py)
	NVC_EXPLORE=1 $(PYTEST) -m nightly tests/kernel/test_faults.py

nightly-faults: $(BUILD)/.packages-test stage
	@$(MAKE) --no-print-directory faults FAULTS="--fresh $(FAULTS)"

bench: export NVC_STAGE := $(CURDIR)/$(BUILD)/prefix
bench: stage ## time `configure`, the hook, `docker run`, and tenants side by side; PEER=/path/to/nvidia-container-cli times both in one run
	@$(MAKE) -s --no-print-directory install PREFIX="$$NVC_STAGE" DESTDIR=
	$(RUN) tests/bench/configure.py $(if $(PEER),--peer $(PEER)) $(BENCH)
	$(RUN) tests/bench/hook.py $(if $(HOOK_PEER),--peer $(HOOK_PEER))
	$(RUN) tests/bench/cdi.py $(if $(CTK_PEER),--peer $(CTK_PEER))
	$(RUN) tests/bench/docker.py
	$(RUN) tests/bench/together.py $(if $(PEER_SHIM),--peer-shim $(PEER_SHIM)) $(TOGETHER)

bundle: stage ## build/bundle: all that a host without a network needs
	$(RUN) packaging/bundle.py $(BUILD)/bundle

packages: stage man ## build/packages: deb and rpm for this machine; ARCH=all: for aarch64 too, in build/packages/aarch64
	$(RUN) packaging/package.py $(BUILD)/packages $(if $(VERSION),--version "$(VERSION)") $(if $(ARCH),--arch "$(ARCH)")

image: stage ## build/kubernetes/nvc.tar: the OCI image for Kubernetes nodes, without a container engine; IMAGE=registry.example/nvc
	$(RUN) packaging/image.py $(BUILD)/kubernetes/nvc.tar $(if $(VERSION),--version "$(VERSION)") $(if $(IMAGE),--name "$(IMAGE)")

tables: native ## write what is made from the code: docs/api.md, tables of docs, and the chart's schema
	$(RUN) packaging/tables.py
	$(RUN) packaging/apidoc.py > $(BUILD)/api.md
	mv $(BUILD)/api.md docs/api.md

chart: | $(VENV)/.ready ## build/kubernetes: the Helm chart, and the manifest nvc.yaml, which HELM makes (helm)
	$(RUN) packaging/chart.py $(BUILD)/kubernetes $(if $(VERSION),--version "$(VERSION)") $(if $(IMAGE),--image "$(IMAGE)") $(if $(HELM),--helm "$(HELM)")

# Tests without a cluster run beside those that wait for theirs.
test-kubernetes: $(BUILD)/.packages-test stage ## a real cluster on this machine with simulated GPUs; wants Go, and builds Kubernetes the first time; PODS=200
	@cd tests && ../$(RUN) -m support.cluster build
	$(if $(PODS),NVC_PODS="$(PODS)") $(PYTEST) --processes 2 $(or $(TESTS),tests/kubernetes)

# Engines are made first, alone: a test's time has no room for that.
test-engines: $(BUILD)/.packages-test $(BUILD)/.packages-engines stage ## clients such as LXC, and engines newer than the distribution's: Debian sid's, unpacked, and others that Go builds the first time, in a quarter of an hour
	dpkg-query -W $$(sed -n 's/^engines //p' packaging/apt-packages.txt) || true
	cd tests && ../$(RUN) -m support.generations build
	$(PYTEST) --processes $(JOBS) -m engines tests/engines
	for generation in sid newest; do \
	    tools=$$(cd tests && ../$(RUN) -m support.generations $$generation) && \
	    NVC_TOOLS="$$tools" $(PYTEST) --processes $(JOBS) tests/kernel -k "runc or crun" || exit 1; \
	done

clients: $(BUILD)/.packages-test $(BUILD)/.packages-engines stage ## write the table of docs/clients.md, after all tests of clients ran
	rm -rf $(BUILD)/clients
	$(PYTEST) --processes $(JOBS) -m "engines or not engines" $$(grep -lr "import.*client_ran" tests/engines tests/kernel)
	cd tests && ../$(RUN) -m support.clients

fuzz: $(BUILD)/.packages-test stage ## feed the parsers of foreign bytes: in C for FUZZ seconds each (60), in Python INPUTS in all (a million), from SEED
	@$(MAKE) -s --no-print-directory -C tests/fuzz OUT=../../$(BUILD)/fuzz
	@for fuzzer in $(BUILD)/fuzz/*_fuzz; do \
	    mkdir -p $$fuzzer.corpus && echo "$$fuzzer" && \
	    $$fuzzer -max_total_time=$(or $(FUZZ),60) $(if $(SEED),-seed=$(SEED)) -verbosity=0 -artifact_prefix=$$fuzzer. $$fuzzer.corpus || exit 1; \
	done
	@cd tests && PYTHONPATH=../$(STAGE)/lib/nvc/python:..:. nice ../$(RUN) -m support.fuzz $(if $(INPUTS),--inputs $(INPUTS)) $(if $(SEED),--seed $(SEED))

faults: $(BUILD)/.packages-test stage ## fail every system call of a container start, and kill it at each; goes on where it stopped
	@$(MAKE) -s --no-print-directory install PREFIX="$(CURDIR)/$(BUILD)/prefix-faults" DESTDIR=
	@cd tests && PYTHONPATH=..:. nice ../$(RUN) -m support.faults_run "$(CURDIR)/$(BUILD)/prefix-faults" $(FAULTS)

stress: $(BUILD)/.packages-test stage ## kill processes of a slice at random for STRESS seconds (default 60)
	NVC_STRESS_SECONDS=$(or $(STRESS),60) $(PYTEST) -m nightly tests/native/test_vgpu_stress.py

clean: ## remove what was built; the Python environment stays
	rm -rf $(BUILD) nvc/_syscalls.abi3.so nvc/tracer-*.bin nvc/*/protocol/*_pb2.py* nvc/*/*/protocol/*_pb2.py* *.egg-info
	find nvc cli hooks tests packaging native -name __pycache__ -prune -exec rm -rf {} +

# SPDX-License-Identifier: Apache-2.0 OR MIT
# Every command of the project by name. `make` alone lists them.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# The quick run of one bench each; the longest first.
QUICK := $(addprefix test-quick-,persist ipc traverse transform copy zmem devices)
.PHONY: help demo demo-first test soak vm-test build wheel wheel-aarch64 wheel-lab wheel-server install uninstall deb sdist release publish-check test-wheel test-pythons test-ml lint clean rust \
	venv binary package tested test-rust test-loom test-fallbacks test-python test-quick test-docs docs $(QUICK)

# A folder named by the environment is respected; `target` is the default, whatever a user's cargo settings say.
override CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
export CARGO_TARGET_DIR
CARGO ?= cargo
PYTHON ?=
export PYTHON
VENV := .venv
VENV_PYTHON := $(CURDIR)/$(VENV)/bin/python
# The Python crate is built by cargo too: for this Python, and without linking to it.
export PYO3_PYTHON := $(VENV_PYTHON)
export PYO3_BUILD_EXTENSION_MODULE := 1
MEMLIFT := $(CARGO_TARGET_DIR)/release/memlift
TESTED_MEMLIFT := $(CARGO_TARGET_DIR)/debug/memlift
TESTED_PACKAGE := $(CARGO_TARGET_DIR)/debug/python
DEMO := $(CARGO_TARGET_DIR)/demo
COMMAND := -p memlift-cli
LAB := -p memlift-lab
WHEEL_DROPINS := -p memlift-openssl -p memlift-zlib -p memlift-preload -p memlift-tap
DROPINS := $(WHEEL_DROPINS) -p memlift-c
PYTHON_CRATE := bindings/python
# The Python package, put together from links beside what was built: what `make build` left in .venv stays.
package_beside = rm -rf $(1)/python && mkdir -p $(1)/python/memlift && cd $(1)/python/memlift && \
	find $(CURDIR)/$(PYTHON_CRATE)/memlift -mindepth 1 -maxdepth 1 ! -name '*.so' -exec ln -s {} . \; && \
	ln -s $(1)/lib_native.so _native.abi3.so
WHEEL_DATA := $(PYTHON_CRATE)/memlift.data
WHEEL_SCRIPTS := $(WHEEL_DATA)/scripts
# One file of it stays: a source distribution has the folder, too, and builds into a wheel of the Python package alone.
empty_wheel_data = find $(WHEEL_DATA) -type f ! -name COPYING -delete && find $(WHEEL_DATA) -type d -empty -delete
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# Wheels run on systems with this glibc or a later one: Zig links against it.
NATIVE := $(shell uname -m)-unknown-linux-gnu
PORTABLE ?= $(NATIVE)
PORTABLE_GLIBC := 2.28
PORTABLE_BUILT = $(CARGO_TARGET_DIR)/$(PORTABLE)/release
# Strips for any machine: rustc comes with it.
STRIP = root=$$(rustc --print sysroot); LD_LIBRARY_PATH="$$root/lib" "$$root/lib/rustlib/$(NATIVE)/bin/rust-objcopy" --strip-all
WHEEL_HOST = $(CARGO_TARGET_DIR)/$(NATIVE)/release/memlift
# The clients of object stores would be a quarter of a wheel: replicas of pools are in the wheel `memlift-server`.
WITHOUT_REPLICAS := --no-default-features --features etcd,jit
COMMAND_WITHOUT_REPLICAS := --no-default-features --features memlift-cli/etcd,memlift-cli/jit $(COMMAND)
SERVER_CRATE := bindings/python-server
SERVER_DATA := $(SERVER_CRATE)/memlift_server.data
# The C library would be a quarter of a wheel: it comes with `make install` and the Debian package.
WHEEL_LIBRARIES := z openssl preload tap
# Crates whose parts are shipped, for the licences of what is linked into them.
SHIPPED := memlift-cli memlift-openssl memlift-zlib memlift-preload memlift-tap

# The Python crate has no Rust tests: pytest has them.
WITHOUT_PYTHON := --workspace --exclude memlift-python
# One build serves every test: Rust's, Python's and the quick runs of the benches. Features are the same for all, so that nothing
# is built twice.
TESTED := --workspace --features memlift-persist/sim,memlift-traverse/etcd,memlift-traverse/xdp,memlift-persist/replicate
# Kernel facilities and instruction sets that are switched off, one set per run, so that every fallback is tested here.
# Left out are the tests whose subject is that a facility is there, and two of the calibration that load every core and have no
# fallback. Facilities and instruction sets are masked together: no code asks for both. ipc's tests of processes that die run once,
# with everything masked at once; `make soak` runs them with each set.
FALLBACK_FOLDERS := ground place offload services/ipc:memlift_ipc services/ipc:session
FALLBACKS ?= scalar:populate_write,huge_pages,thp sse2:memfd_seal avx2:io_uring,numa,waitpkg,mwaitx,movdir64b,enqcmd
FALLBACK_SKIP := --skip what_every_supported_kernel_has_is_found --skip transparent_huge_pages_start_at_their_boundary \
	--skip what_a_busy_machine_measures_is_not_trusted_and_replaces_nothing \
	--skip what_cannot_be_written_stays_in_memory_and_says_so
EVERYTHING := populate_write,huge_pages,thp,memfd_seal,io_uring,numa,waitpkg,mwaitx,movdir64b,enqcmd
SOAK_CASES ?= 50000

## demo    Installs what is missing into .venv, builds and runs the tour: the main job, side by side with its rivals
# The main job's table comes as soon as it can: pip waits for the network while cargo builds, links do not optimise, walks are not
# compiled yet, and the chapter is started without the command. The other chapters come with what they need, in one more build.
demo: export PYTHONPATH := $(DEMO)/python
demo: export VIRTUAL_ENV := $(CURDIR)/$(VENV)
demo:
	@$(MAKE) --jobs=2 venv demo-first
	@$(call package_beside,$(DEMO))
	@$(VENV_PYTHON) lab/bench/tour/ipc_chapter.py
	PYO3_NO_PYTHON=1 $(CARGO) build --profile demo --no-default-features --features memlift-python/jit,memlift-cli/jit \
		-p memlift-python $(COMMAND) $(LAB) $(WHEEL_DROPINS)
	@$(DEMO)/memlift tour transform persist traverse zmem

demo-first: rust
	PYO3_NO_PYTHON=1 $(CARGO) build --profile demo --no-default-features -p memlift-python

## test    Every test: Rust, the fallbacks, Python, and a quick run of each bench that verifies every row
# The Rust tests keep every core busy. The other parts wait for disks, leases and each other's processes: side by side they fill
# the time that each leaves.
# A machine that runs tests is not measured.
test test-rust test-python test-fallbacks soak: export MEMLIFT_CALIBRATE := false
test:
	@SECONDS=0; $(MAKE) test-rust; echo "== make test-rust: $$SECONDS s"
	@SECONDS=0; $(MAKE) --jobs=3 --output-sync=target test-python $(QUICK) test-loom test-fallbacks test-docs; \
		echo "== make test-python test-quick test-loom test-fallbacks test-docs: $$SECONDS s"
	@echo "make test: all passed"

test-rust: venv
	$(CARGO) xtask test -- $(TESTED)

# Every interleaving of the atomics that wake and publish; loom replaces the standard library's, so `ground` is built again.
test-loom: tested
	$(CARGO) test $(TESTED),memlift-ground/_loom --test 'loom_*'

test-fallbacks: rust
	@for masks in $(FALLBACKS); do \
		export MEMLIFT_ISA=$${masks%%:*} MEMLIFT_DISABLE=$${masks#*:}; \
		echo "== MEMLIFT_ISA=$$MEMLIFT_ISA MEMLIFT_DISABLE=$$MEMLIFT_DISABLE"; \
		$(CARGO) xtask test $(FALLBACK_FOLDERS:%=--only %) $(FALLBACK_SKIP) -- $(TESTED); \
	done
	MEMLIFT_ISA=scalar MEMLIFT_DISABLE=$(EVERYTHING) $(CARGO) xtask test --only services/ipc:processes -- $(TESTED)
	MEMLIFT_DISABLE=udp_trains $(CARGO) xtask test --only services/traverse:client \
		--skip load:: --skip pause:: --skip presence:: -- $(TESTED)

tested: venv
	$(CARGO) build --all-targets $(TESTED)
	@$(call package_beside,$(CARGO_TARGET_DIR)/debug)

test-python: export PYTHONPATH := $(TESTED_PACKAGE)
test-python: tested
	$(VENV_PYTHON) -m pytest -q $(PYTHON_CRATE)/tests

# The site builds without a broken link, and its pages are whole in a browser where there is one.
test-docs: tested
	@tools/setup docs
	@tools/site build $(CARGO_TARGET_DIR)/site-tested $(TESTED_PACKAGE)
	@tools/site check $(CARGO_TARGET_DIR)/site-tested

# Every row is verified as in a full run; its times say nothing.
test-quick: $(QUICK)

# What of zmem's bench fits: the other rows are whole jobs in memory groups.
test-quick-zmem: BENCH_OPTIONS := --only "ratio/*"
test-quick%: export PYTHONPATH := $(TESTED_PACKAGE)
# What is measured beside other tests is not kept for the user.
test-quick%: export MEMLIFT_CALIBRATION := $(CARGO_TARGET_DIR)/calibration-quick.json
test-quick%: export MEMLIFT_CALIBRATE := false
test-quick%: export VIRTUAL_ENV := $(CURDIR)/$(VENV)
$(QUICK): test-quick-%: tested
	timeout --foreground --verbose --kill-after=10 20m $(TESTED_MEMLIFT) bench $* --quick $(BENCH_OPTIONS)

## test-pythons The Python tests under other interpreters: PYTHONS="python3.13 /opt/py314t/bin/python3", each with an environment of its own
PYTHONS ?=
test-pythons: tested
	@for python in $(PYTHONS); do tools/pythons "$$python" $(CARGO_TARGET_DIR) || exit 1; done

## test-ml The tests beside PyTorch, Ray and ONNX Runtime, which are installed into an environment of their own (6 GB)
ML_TESTS := test_torch.py test_ray.py test_serving.py test_exact.py test_persist_checkpoint.py test_foreign_pools.py test_docs.py
test-ml: export PYTHONPATH := $(TESTED_PACKAGE)
test-ml: tested
	python=$$(tools/setup ml) && cd $(PYTHON_CRATE)/tests && "$$python" -m pytest -q $(ML_TESTS) -k "torch or ray or onnx"

## soak    The long tests: those named soak_…, and the property tests with many more cases, in release
soak: build
	$(CARGO) test --release $(WITHOUT_PYTHON) -- --ignored soak_
	$(CARGO) test --release -p memlift-persist --features sim --test sim -- --ignored soak_
	PROPTEST_CASES=$(SOAK_CASES) $(CARGO) test --release -p memlift-spec -p memlift-kernels -p memlift-ground -p memlift-offload -p memlift-ipc -p memlift-conformance
	@for masks in $(FALLBACKS); do \
		MEMLIFT_ISA=$${masks%%:*} MEMLIFT_DISABLE=$${masks#*:} $(CARGO) xtask test --only services/ipc:processes -- $(TESTED); \
	done
	$(VENV_PYTHON) -m pytest -q $(PYTHON_CRATE)/tests -m soak -o faulthandler_timeout=0 || [ $$? = 5 ]  # 5: there is none
	@$(MAKE) test-ml
	$(VENV_PYTHON) tools/compatibility $(MEMLIFT) --levels 120
	$(VENV_PYTHON) tools/replays $(MEMLIFT)
	@tools/ramulator-test --release

## vm-test In virtual machines: pools on an emulated NVDIMM whose plug is pulled, memory budgets on cgroup v2; not part of CI
vm-test: rust
	tools/vm-test ext4
	tools/vm-test-zmem

## build   Leaves target/release/memlift and memlift-lab, the drop-ins beside them, and the Python package in .venv
build: binary package
	$(CARGO) build --release $(LAB)

rust:
	@tools/setup rust

venv:
	@tools/setup venv

binary: rust
	$(CARGO) build --release $(COMMAND) $(DROPINS)

package: venv
	@mkdir -p $(WHEEL_SCRIPTS)
	@cd $(PYTHON_CRATE) && env -u CONDA_PREFIX VIRTUAL_ENV=$(CURDIR)/$(VENV) \
		$(VENV_PYTHON) -m maturin develop --release --quiet

## wheel   Leaves one wheel in dist/ for every Python from 3.11 and glibc from 2.28, with the `memlift` command, its drop-ins and the C headers
# Data of a wheel is unpacked beside its scripts: the command finds its libraries in ../lib/memlift. Pages and completions are written by
# the command for this machine.
wheel: venv rust
	@tools/setup wheel $(PORTABLE)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" \
		$(CARGO) zigbuild --release --target $(PORTABLE).$(PORTABLE_GLIBC) $(COMMAND_WITHOUT_REPLICAS) $(WHEEL_DROPINS)
	@$(empty_wheel_data) && install -d $(WHEEL_SCRIPTS) $(addprefix $(WHEEL_DATA)/data/,lib/memlift include/memlift) dist
	@$(STRIP) $(PORTABLE_BUILT)/memlift $(WHEEL_SCRIPTS)/memlift
	@for library in $(WHEEL_LIBRARIES); do \
		$(STRIP) $(PORTABLE_BUILT)/libmemlift_$$library.so $(WHEEL_DATA)/data/lib/memlift/libmemlift_$$library.so || exit 1; \
	done; chmod 644 $(WHEEL_DATA)/data/lib/memlift/*.so
	@install -m 644 bindings/c/include/*.h $(WHEEL_DATA)/data/include/memlift/
	@install -d $(WHEEL_DATA)/data/share/doc/memlift && install -m 644 LICENSE-APACHE LICENSE-MIT $(WHEEL_DATA)/data/share/doc/memlift/
	@tools/notices $(WHEEL_DATA)/data/share/doc/memlift/NOTICES $(SHIPPED) memlift-python
	@$(WHEEL_HOST) man $(WHEEL_DATA)/data/share/man/man1 2>/dev/null
	@install -d $(WHEEL_DATA)/data/share/bash-completion/completions && \
		$(WHEEL_HOST) completions bash > $(WHEEL_DATA)/data/share/bash-completion/completions/memlift
	@cd $(PYTHON_CRATE) && PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV_PYTHON) -m maturin build --release --strip --zig --compression-level 9 $(WITHOUT_REPLICAS) \
		--target $(PORTABLE) --compatibility manylinux_$(subst .,_,$(PORTABLE_GLIBC)) --out $(CURDIR)/dist; \
		status=$$?; cd $(CURDIR) && $(empty_wheel_data); exit $$status
	@tools/wheel-check "$$(ls -t dist/memlift-*.whl | head -1)" $(PORTABLE_GLIBC)
	@tools/wheel-anywhere $(VERSION) dist

## wheel-aarch64 Leaves the wheel for 64-bit Arm beside it, built here by Zig; `make wheel` comes first
wheel-aarch64:
	@$(MAKE) wheel PORTABLE=aarch64-unknown-linux-gnu

## wheel-lab Leaves the wheel of `memlift-lab` in dist/: benches beside rivals, the papers' machines, whatif. `make wheel` comes first
wheel-lab: venv rust
	@tools/setup wheel $(PORTABLE)
	@cd lab/cli && PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV_PYTHON) -m maturin build --release --strip --zig --compression-level 9 \
		--target $(PORTABLE) --compatibility manylinux_$(subst .,_,$(PORTABLE_GLIBC)) --out $(CURDIR)/dist
	@tools/wheel-check "$$(ls -t dist/memlift_lab-*.whl | head -1)" $(PORTABLE_GLIBC)

## wheel-server Leaves the wheel of `memlift-server` in dist/: memlift's native part and command with replicas of pools. `make wheel` comes first
wheel-server: venv rust
	@tools/setup wheel $(PORTABLE)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(CARGO) zigbuild --release --target $(PORTABLE).$(PORTABLE_GLIBC) $(COMMAND)
	@install -d $(SERVER_DATA)/scripts $(SERVER_DATA)/data/share/doc/memlift-server dist
	@$(STRIP) $(PORTABLE_BUILT)/memlift $(SERVER_DATA)/scripts/memlift-server
	@tools/notices $(SERVER_DATA)/data/share/doc/memlift-server/NOTICES memlift-cli memlift-python
	@cd $(SERVER_CRATE) && PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV_PYTHON) -m maturin build --release --strip --zig --compression-level 9 \
		--target $(PORTABLE) --compatibility manylinux_$(subst .,_,$(PORTABLE_GLIBC)) --out $(CURDIR)/dist; \
		status=$$?; rm -rf $(CURDIR)/$(SERVER_DATA); exit $$status
	@tools/wheel-check "$$(ls -t dist/memlift_server-*.whl | head -1)" $(PORTABLE_GLIBC)

## sdist   Leaves the Python package's sources in dist/: pip builds them where there is Rust and a C compiler
sdist: venv
	@cd $(PYTHON_CRATE) && $(VENV_PYTHON) -m maturin sdist --out $(CURDIR)/dist

## install Copies the command, libraries, headers, manual pages, completions and units below PREFIX (/usr/local); DESTDIR is respected
PREFIX ?= /usr/local
install: binary
	@tools/install $(CARGO_TARGET_DIR)/release $(PREFIX) $(VERSION) $(DESTDIR)

## uninstall Removes what `make install` copied below PREFIX, and nothing else
uninstall:
	@tools/install --remove $(PREFIX) $(DESTDIR)

## deb     Leaves a Debian package in dist/
deb: binary
	@tools/deb $(CARGO_TARGET_DIR)/release $(VERSION) dist

## release Leaves wheels, Debian package, sources, parts (SBOM), provenance and sums in dist/VERSION; uploads nothing
release:
	@tools/release $(VERSION)
	@$(MAKE) wheel
	@$(MAKE) wheel-lab wheel-server wheel-aarch64 deb sdist
	@tools/release $(VERSION) dist/memlift-$(VERSION).tar.gz dist/memlift-$(VERSION)-*.whl dist/memlift_lab-$(VERSION)-*.whl dist/memlift_server-$(VERSION)-*.whl dist/memlift_$(VERSION)_*.deb

## publish-check Packs and builds every crate as a registry would; needs a network, publishes nothing
publish-check: rust
	$(CARGO) publish --workspace --dry-run

## test-wheel Installs the newest wheel into an environment of its own and uses each verb, without Rust or this folder
test-wheel: venv
	tools/wheel-test $(VENV_PYTHON) "$$(ls -t dist/memlift-*_$$(uname -m).whl | head -1)" $$(ls -t dist/memlift_lab-*_$$(uname -m).whl 2>/dev/null | head -1) \
		$$(ls -t dist/memlift_server-*_$$(uname -m).whl 2>/dev/null | head -1)

## lint    Format, clippy, documentation, layers, words, licences and advisories, the interface beside the last tag
lint: venv
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
	$(CARGO) xtask layers
	$(CARGO) xtask words
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check; \
	else echo "cargo deny: not run (install it with: cargo install cargo-deny)"; fi
	@if ! $(CARGO) semver-checks --version >/dev/null 2>&1; then \
		echo "cargo semver-checks: not run (install it with: cargo install cargo-semver-checks)"; \
	elif ! tag=$$(git describe --tags --abbrev=0 2>/dev/null); then \
		echo "cargo semver-checks: not run: there is no tag to compare with yet"; \
	else $(CARGO) semver-checks --workspace --baseline-rev "$$tag"; fi

## docs    Leaves the site in target/site: tutorials, recipes, guides, numbers, reference; it needs no server and no network
docs: package
	@tools/setup docs
	$(CARGO) doc --workspace --no-deps
	@tools/site build $(CARGO_TARGET_DIR)/site "$$($(VENV_PYTHON) -c 'import site; print(site.getsitepackages()[0])')"

## clean   Removes everything that was built inside this folder, .venv too
clean:
	rm -rf target $(VENV) .venv-docs .venv-redis .venv-moto .venv-ml dist
	$(empty_wheel_data)
	find $(PYTHON_CRATE) -name '*.so' -delete
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

## help    This list
help:
	@echo "memlift: memory work, lifted off the core"
	@sed -n 's/^## \([a-z-]*\) */  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

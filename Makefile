# make test        everything that needs no GPU; what CI runs
# make test-gpu    everything that needs one
# make audit       fuzzing and AddressSanitizer, and every kernel for every architecture; minutes
# make wheel       the Python package for any Linux with glibc 2.28, optimised, into TARGET/wheels
# make STEP        one step of `make test`, by its name below
SHELL := /bin/sh
export MAKE

# `make test` runs those after `build` two at a time: scripts/run-steps.sh.
STEPS = fmt-check lint build tests clippy features doctests deny kernels check emulated examples python add-a-family

# Release speed with overflow checks and debug assertions; one build serves tests, check, kernels and examples.
PROFILE = --profile conformance
TARGET := $(or $(CARGO_TARGET_DIR),target)
CHRONAXIE = $(TARGET)/conformance/chronaxie
# The two NVRTCs of scripts/requirements.txt, by the folders of their wheels.
VENV = $(shell scripts/venv.sh)
SITE = $(wildcard $(VENV)/lib/python3*/site-packages/nvidia)
NVRTC13 = $(SITE)/cu13/lib
NVRTC12 = $(SITE)/cuda_nvrtc/lib
FEATURES = layers spiking optim train report

.PHONY: help test test-gpu pack-gpu wheel study audit fuzz asan fmt figures kernels-all $(STEPS)

help:
	@sed -n 's/^# make /make /p' Makefile

test:
	@scripts/run-steps.sh $(STEPS)

fmt:
	cargo fmt --all

fmt-check:
	cargo fmt --all --check

# What no compiler looks for: hosts, machines' paths, left-overs, sizes of files, commands that the README names.
lint:
	scripts/lint-repo.sh

# In the profile of the builds: what runs on this machine while they are made (macros, build scripts) is built once.
clippy:
	cargo clippy $(PROFILE) --workspace --all-targets --all-features -- -D warnings

# The floors hold only if each stands without its neighbours.
features:
	cargo check --quiet $(PROFILE) -p chronaxie-runtime
	cargo check --quiet $(PROFILE) -p chronaxie --no-default-features
	@set -e; for f in $(FEATURES); do \
		echo "cargo check -p chronaxie --no-default-features --features $$f"; \
		cargo check --quiet $(PROFILE) -p chronaxie --no-default-features --features $$f; \
	done

# All that later steps run, in one build that keeps both cores at work.
build:
	cargo test --no-run --workspace --all-features $(PROFILE) --lib --bins --tests --examples
	cargo build --quiet --workspace --all-features $(PROFILE) --bins --examples

tests:
	CHRONAXIE_NVRTC=$(NVRTC13) CHRONAXIE_NVRTC12=$(NVRTC12) CHRONAXIE_REQUIRE_NVRTC=1 \
		cargo test --workspace --all-features $(PROFILE) --lib --bins --tests --examples

doctests:
	CHRONAXIE_NVRTC=$(NVRTC13) cargo test --workspace --all-features $(PROFILE) --doc
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --workspace --all-features --no-deps $(PROFILE)

deny:
	scripts/cargo-deny.sh check bans licenses sources

# scripts/run-steps.sh says when it is built already, and nothing else of a step waits for cargo.
$(CHRONAXIE): FORCE
	@[ -n "$$CHRONAXIE_BUILT" ] || cargo build --quiet --workspace --all-features $(PROFILE) --bins --examples
FORCE:

# Every source by the newest NVRTC for sm_90a: of specialisations that differ in numbers alone every 24th, and of a source at most
# two that differ in more. Of three quarters of the sources besides every 32nd, of one quarter each: by the oldest NVRTC for
# sm_75, where code is its own; and for the other architectures, whose code is one of those two kinds and which take turns, by the
# newest or by the oldest. At least one of each is compiled; which ones, and for what, changes with the source.
# `make kernels-all` leaves none out: run it where a kernel changes.
OTHERS13 = sm_80,sm_100a,sm_120
OTHERS12 = sm_89,sm_90a
ALIKE = --one-in 24 --alike --kinds 2
ONE_IN = 32
SPREAD = --spread
QUARTER13 = --sources 1/4
QUARTER75 = --sources 2/4
QUARTER12 = --sources 3/4
COMPILE = $(CHRONAXIE) compile --report --deny-spills
kernels: $(CHRONAXIE)
	$(COMPILE) --nvrtc $(NVRTC13) --arch sm_90a $(ALIKE)
	$(COMPILE) --nvrtc $(NVRTC13) --arch $(OTHERS13) --one-in $(ONE_IN) $(SPREAD) $(QUARTER13)
	$(COMPILE) --nvrtc $(NVRTC12) --arch sm_75 --one-in $(ONE_IN) $(QUARTER75)
	$(COMPILE) --nvrtc $(NVRTC12) --arch $(OTHERS12) --one-in $(ONE_IN) $(SPREAD) $(QUARTER12)
kernels-all:
	$(MAKE) --no-print-directory kernels ALIKE= ONE_IN=1 SPREAD= QUARTER13= QUARTER75= QUARTER12= OTHERS13=sm_75,sm_80,sm_89,sm_100a,sm_120 OTHERS12=sm_80,sm_89,sm_90a

# In two processes, since the references take one core; then: every family that there is has its cases for the sanitizers and
# the repeats on a GPU.
check: $(CHRONAXIE)
	@for part in 1 2; do \
		{ $(CHRONAXIE) check --backend cpu --quiet --part $$part/2 --json $(TARGET)/check-$$part.json; echo $$? >$(TARGET)/check-$$part.rc; } & \
	done; wait; \
	for part in 1 2; do [ "$$(cat $(TARGET)/check-$$part.rc)" = 0 ] || exit 1; done
	@for family in $$(cat $(TARGET)/check-1.json $(TARGET)/check-2.json | grep -o '"family": *"[^"]*"' | cut -d '"' -f 4 | sort -u); do \
		for use in small wave; do \
			grep -qE "^($$family +$$use|# $$family +none) " scripts/gpu-cases.txt || \
				{ echo "scripts/gpu-cases.txt has no $$use case for $$family"; exit 1; }; \
		done; \
	done

# The CUDA path on a device that the CPU emulates: kernels, launches, streams, graphs. What it cannot show is speed, and what
# only real hardware does: `make test-gpu`. Networks run beside, since a test there takes one core.
emulated: $(CHRONAXIE)
	@mkdir -p $(TARGET)/emulated; export CHRONAXIE_REQUIRE_GPU=1; log=$(TARGET)/emulated/networks; scripts/emulated.sh >/dev/null; \
	{ scripts/emulated.sh cargo test --workspace --all-features $(PROFILE) --lib -- on_a_gpu_networks on_a_gpu_blocks; echo $$? >$$log.rc; } >$$log.log 2>&1 & \
	scripts/emulated-check.sh $(TARGET)/conformance && \
	scripts/emulated.sh cargo test --workspace --all-features $(PROFILE) --test gpu --test emulated; rc=$$?; \
	wait; cat $$log.log; [ $$rc = 0 ] && [ "$$(cat $$log.rc)" = 0 ]

examples: $(CHRONAXIE)
	CHRONAXIE_NVRTC=$(NVRTC13) scripts/examples.sh $(TARGET)/conformance

# How fast each optimizer learns, by steps and by wall time: minutes to hours. ARGS goes to the study of classifiers, whose short
# form `make examples` runs, and LM_ARGS to that of a language model, whose short form is in `make python`.
study: $(CHRONAXIE)
	benchmarks/study.py $(CHRONAXIE) --out $(TARGET)/study $(ARGS)
	PROFILE=release scripts/python.sh --run benchmarks/study_lm.py --out $(TARGET)/study $(LM_ARGS)

# docs/add-a-family.md, followed to the letter in a copy of the tree.
add-a-family:
	CHRONAXIE_NVRTC=$(NVRTC13) python3 scripts/add-a-family.py

# The Python package: its wheel in the profile of the other steps, and its tests. ARGS goes to pytest, as in ARGS="-k export".
python:
	scripts/python.sh $(ARGS)

wheel:
	scripts/wheel.sh

# GPU_DIR is also what a machine without Rust needs: carry it there and run GPU_DIR/run-gpu.sh.
GPU_DIR ?= $(TARGET)/gpu
pack-gpu:
	scripts/pack-gpu.sh $(GPU_DIR)

test-gpu: pack-gpu
	$(GPU_DIR)/run-gpu.sh

audit: fuzz asan kernels-all

fuzz:
	fuzz/run.sh

# Another target folder: the flags make other artefacts of every crate. Memory that nothing refers to at the end is a
# finding too.
asan:
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$(TARGET)/asan \
		cargo test --workspace --all-features $(PROFILE) --lib --no-fail-fast --target $(shell rustc -vV | sed -n 's/^host: //p')

# The README's table of measured figures, from bench-results/.
figures:
	python3 scripts/figures.py

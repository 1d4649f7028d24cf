# A thin layer over the CMake presets; see CMakePresets.json.
#
# Every target is one sequence of commands. Two of them must not run at once in the same build
# folder, so -j is left to Ninja.
.NOTPARALLEL:
.DEFAULT_GOAL := help

PRESET ?= release
JOBS ?= $(shell scripts/jobs)
ARGS ?=
PROCESSES ?= 2

build_dir = $(if $(filter release,$(PRESET)),build,build/$(PRESET))
cmake_build = cmake --build --preset $(PRESET) -j $(JOBS)
python = $$(sed -n 's/^set(ACCELERANT_PYTHON "\([^"]*\)".*/\1/p' build/setup.cmake)

.PHONY: help build demo test check test-long fuzz bench bench-check build-times lint format clean distclean

help: ## Show this text
	@echo 'Usage: make TARGET [PRESET=release|dev|asan|tsan] [JOBS=N]'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'The first run sets the machine up (scripts/setup --help tells how).'

build: ## Build everything
	@scripts/setup build
	@scripts/configure $(PRESET)
	@$(cmake_build)

demo: ## Build and run the demo: a small network on Fashion-MNIST, on two processes (ARGS='--help' for more)
	@scripts/setup demo
	@scripts/configure $(PRESET)
	@$(cmake_build) --target accelerant-demo accelerant_cli
	@$(build_dir)/bin/accelerant launch --num-processes $(PROCESSES) -- $(build_dir)/bin/accelerant-demo $(ARGS)

test: ## Build everything and run the tests, except the long ones
	@scripts/setup test
	@scripts/configure $(PRESET)
	@$(cmake_build)
	@ctest --preset $(PRESET) -j $(JOBS) $(ARGS)

check: ## Build and run one test program (TEST=amp_test, ARGS='--gtest_filter=...'); quick with PRESET=dev
	@scripts/setup build
	@scripts/configure $(PRESET)
	@$(cmake_build) --target $(or $(TEST),$(error Name the program, as in: make check PRESET=dev TEST=amp_test))
	@$(build_dir)/bin/$(TEST) $(ARGS)

test-long: ## Run all tests, the long ones too (preset release)
	@scripts/setup test
	@scripts/configure release
	@cmake --build --preset release -j $(JOBS)
	@ctest --preset long -j $(JOBS) $(ARGS)

fuzz: ## Run the fuzzers, a minute each (with clang)
	@scripts/setup fuzz
	@scripts/configure fuzz
	@cmake --build --preset fuzz -j $(JOBS)
	@ctest --preset fuzz $(ARGS)

bench: ## Measure against Python, plain libtorch and the machine itself (ARGS='--full', '--only tail', '--help')
	@scripts/setup test
	@scripts/configure $(PRESET)
	@$(cmake_build) --target benchmark-programs
	@$(python) benchmarks/run.py --build $(build_dir) $(ARGS)

bench-check: ## Measure shortly, and fail where a ratio is 15 % under the stored one (ARGS='--store' stores)
	@scripts/setup test
	@scripts/configure $(PRESET)
	@$(cmake_build) --target benchmark-programs
	@$(python) benchmarks/check.py --build $(build_dir) $(ARGS)

build-times: ## Show how long the compiler took for each room
	@scripts/build-times $(build_dir)

lint: ## Check format and style of all files
	@scripts/setup lint
	@scripts/lint

format: ## Format all C++ and CUDA files
	@scripts/setup lint
	@scripts/format

clean: ## Remove build/ (the installed libtorch stays in .venv/)
	rm -rf build

distclean: ## Remove build/ and .venv/
	rm -rf build .venv

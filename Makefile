# A thin layer over the CMake presets; see CMakePresets.json.
#
# Each target runs its commands in sequence. Two targets must not run at once in the same build
# folder, so only Ninja runs jobs in parallel.
.NOTPARALLEL:
.DEFAULT_GOAL := help

PRESET ?= release
PREFIX ?= /usr/local
JOBS ?= $(shell scripts/jobs)
ARGS ?=

build_dir = $(if $(filter release,$(PRESET)),build,build/$(PRESET))
cmake_build = cmake --build --preset $(PRESET) -j $(JOBS)
python = $$(sed -n 's/^set(ACCELERANT_PYTHON "\([^"]*\)".*/\1/p' build/setup.cmake)

.PHONY: help build install demo test check test-long sanitize fuzz bench bench-check build-times lint format clean distclean

help: ## Show this text
	@echo 'Usage: make TARGET [PRESET=release|dev|asan|tsan] [JOBS=N]'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'The first run sets up the machine (see scripts/setup --help).'

build: ## Build everything
	@scripts/setup build
	@scripts/configure $(PRESET)
	@$(cmake_build)

demo: ## Build and run the demo: plain libtorch and Accelerant side by side, on your machine (ARGS='--help')
	@scripts/setup demo
	@scripts/configure $(PRESET)
	@$(cmake_build) --target accelerant-demo accelerant_cli
	@$(build_dir)/bin/accelerant-demo $(ARGS)

test: ## Build everything and run the tests, except the long ones
	@scripts/setup test
	@scripts/configure $(PRESET)
	@$(cmake_build)
	@ctest --preset $(PRESET) -j $(JOBS) $(ARGS)

check: ## Build and run one test program (TEST=amp_test, ARGS='--gtest_filter=...'); fastest with PRESET=dev
	@scripts/setup build
	@scripts/configure $(PRESET)
	@$(cmake_build) --target $(or $(TEST),$(error Name the program, as in: make check PRESET=dev TEST=amp_test))
	@$(build_dir)/bin/$(TEST) $(ARGS)

test-long: ## Build everything and run all tests, including the long ones (preset release)
	@scripts/setup test
	@scripts/configure release
	@cmake --build --preset release -j $(JOBS)
	@ctest --preset long -j $(JOBS) $(ARGS)

sanitize: ## Run the C++ tests with AddressSanitizer, and those of threads of our own with ThreadSanitizer
	@scripts/setup test
	@scripts/configure asan
	@cmake --build --preset asan -j $(JOBS)
	@ctest --preset asan -j $(JOBS) -R '_test\.' $(ARGS)
	@scripts/configure tsan
	@cmake --build --preset tsan -j $(JOBS) --target core-tests pager_test pager_training_test offload_test
	@ctest --preset tsan -j $(JOBS) -L core $(ARGS)
	@ctest --preset tsan -j $(JOBS) -R '^(pager_|offload_test.UpdateInBackward)' $(ARGS)

install: ## Build the library and the command, and install them (PREFIX=/usr/local)
	@scripts/setup build
	@scripts/configure $(PRESET)
	@$(cmake_build) --target accelerant accelerant_cli accelerant-describe accelerant-selftest
	@cmake --install $(build_dir) --prefix "$(PREFIX)"

fuzz: ## Build the fuzzers and run each for a minute (needs clang)
	@scripts/setup fuzz
	@scripts/configure fuzz
	@cmake --build --preset fuzz -j $(JOBS)
	@ctest --preset fuzz $(ARGS)

bench: ## Compare with Python, plain libtorch and the machine itself (ARGS='--full', '--only tail', '--help')
	@scripts/setup test
	@scripts/configure $(PRESET)
	@$(cmake_build) --target benchmark-programs
	@$(python) benchmarks/run.py --build $(build_dir) $(ARGS)

bench-check: ## Measure briefly; fail if a ratio is 15 % below the stored one (ARGS='--store' stores new ones)
	@scripts/setup test
	@scripts/configure $(PRESET)
	@$(cmake_build) --target benchmark-programs
	@$(python) benchmarks/check.py --build $(build_dir) $(ARGS)

build-times: ## Show how long the compiler took for each room
	@scripts/build-times $(build_dir)

lint: ## Check the format and style of all files
	@scripts/setup lint
	@scripts/lint

format: ## Format all C++ and CUDA files
	@scripts/setup lint
	@scripts/format

clean: ## Remove build/ (the installed libtorch stays in .venv/)
	rm -rf build

distclean: ## Remove build/ and .venv/
	rm -rf build .venv

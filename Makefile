PYTHON ?= .venv/bin/python

.PHONY: install test lint types stubs bench bench-race bench-misled bench-corpus bench-drafts bench-verify ci

install:  ## a virtual environment with everything for work on refdraft
	python3 -m venv .venv
	$(PYTHON) -m pip install torch==2.13.0 -e '.[dev]'

test:
	$(PYTHON) -m pytest

lint:
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check

types:
	$(PYTHON) -m mypy

stubs:  ## regenerate src/refdraft/v1 from protos/
	PATH="$(CURDIR)/$(dir $(PYTHON)):$$PATH" $(PYTHON) -m grpc_tools.protoc -Iprotos --python_out=src --grpc_python_out=src \
	  --mypy_out=quiet:src --mypy_grpc_out=quiet:src protos/refdraft/v1/*.proto

bench: bench-drafts bench-corpus bench-race bench-misled  ## README's figures (hours; a stopped run goes on where it was)
	$(PYTHON) benchmarks/retrieval.py
	$(PYTHON) benchmarks/costs.py

bench-race:  ## real decoding beside others' drafting; says how to install arctic-inference where that is missing
	$(PYTHON) benchmarks/real_decoding.py --dtype float32
	$(PYTHON) benchmarks/real_decoding.py --dtype bfloat16
	$(PYTHON) benchmarks/decoding/chart.py

bench-misled:  ## references that mislead, with all sources on and alone
	for dtype in float32 bfloat16; do \
	  $(PYTHON) benchmarks/adversarial.py --dtype $$dtype || exit 1; \
	  $(PYTHON) benchmarks/adversarial.py --dtype $$dtype --alone || exit 1; \
	done

bench-corpus:  ## drafting from an index alone
	for part in build search replay; do $(PYTHON) benchmarks/corpus.py $$part || exit 1; done

TRACES = $(addprefix ../shared/data/traces/,rag_llma.jsonl rag_mtrag.jsonl grammar_jfleg.jsonl)
DRAFTS = benchmarks/results/drafts

bench-drafts:  ## replays of recorded generations, and pictures of them (minutes)
	for part in all second; do \
	  .venv/bin/refdraft bench drafts --data $(TRACES) --part $$part --budget 8,16,32,64 --json \
	    --plot $(DRAFTS)_$$part.svg --reliability $(DRAFTS)_$${part}_reliability.svg > $(DRAFTS)_$$part.json || exit 1; \
	done

VERIFY = .venv/bin/refdraft verify --threads 1 --data ../shared/data/spec_bench/question.jsonl --json
VERIFIED = benchmarks/results/verify

bench-verify:  ## drafted against plain decoding on Spec-Bench (hours; a stopped run goes on where it was)
	$(VERIFY) --limit 120 --records build/float32.jsonl > $(VERIFIED)_float32_greedy.json
	$(VERIFY) --limit 120 --temperature 0.7 --top-p 0.9 --records build/sampled.jsonl > $(VERIFIED)_float32_sampled.json
	$(VERIFY) --only batch --records build/float32_480.jsonl > $(VERIFIED)_float32_greedy_480.json
	$(VERIFY) --limit 120 --dtype bfloat16 --numerics strict --max-draft-tokens 3 --context-limit 2048 \
	  --records build/bfloat16_strict.jsonl > $(VERIFIED)_bfloat16_strict_greedy.json
	-$(VERIFY) --limit 40 --only alone --dtype bfloat16 --numerics fast --context-limit 2048 \
	  --records build/bfloat16_fast.jsonl > $(VERIFIED)_bfloat16_fast_greedy.json  # expected to differ, hence to fail
	$(PYTHON) benchmarks/numerics.py

ci:
	.ci/run

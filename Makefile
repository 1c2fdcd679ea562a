PYTHON ?= .venv/bin/python

.PHONY: install test lint types stubs bench ci

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

bench:  ## the figures on real decoding (an hour or two; a stopped run goes on where it was)
	$(PYTHON) benchmarks/real_decoding.py

ci:
	.ci/run

PYTHON ?= .venv/bin/python

.PHONY: stubs
stubs:  ## regenerate src/refdraft/v1 from protos/
	PATH="$(CURDIR)/$(dir $(PYTHON)):$$PATH" $(PYTHON) -m grpc_tools.protoc -Iprotos --python_out=src --grpc_python_out=src \
	  --mypy_out=quiet:src --mypy_grpc_out=quiet:src protos/refdraft/v1/*.proto

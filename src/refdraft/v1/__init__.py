"""The protobuf messages and gRPC stubs, generated from protos/ by `make stubs`."""

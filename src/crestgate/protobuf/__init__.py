"""Protobuf messages, made from the .proto files in proto/: Envoy's, gRPC's and our own."""

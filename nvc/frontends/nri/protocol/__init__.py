"""Messages of the Node Resource Interface. The modules `*_pb2` are made from the .proto files here by `make build`.

A .proto file here describes the part of the public protocol that nvc uses: fields that nothing reads are left out.
"""

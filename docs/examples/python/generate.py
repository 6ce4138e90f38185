#!/usr/bin/python3
"""Continues a text on a kvmesh and prints the answer as it comes."""
import argparse
import pathlib
import sys

import grpc
from kvmesh.v1 import router_pb2, router_pb2_grpc


def connect(router, tls_dir):
    if tls_dir is None:
        return grpc.insecure_channel(router)
    read = lambda name: (tls_dir / name).read_bytes()
    credentials = grpc.ssl_channel_credentials(read("ca.crt"), read("tls.key"), read("tls.crt"))
    # What a router's certificate is called, whatever its address.
    return grpc.secure_channel(router, credentials, [("grpc.ssl_target_name_override", "router.kvmesh")])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("router", help="its address, host:port")
    parser.add_argument("prompt")
    parser.add_argument("--tls-dir", type=pathlib.Path)
    parser.add_argument("--token-file", type=pathlib.Path)
    arguments = parser.parse_args()
    metadata = []
    if arguments.token_file is not None:
        metadata.append(("authorization", "Bearer " + arguments.token_file.read_text().strip()))
    request = router_pb2.GenerateRequest(text=arguments.prompt, add_special_tokens=True)
    request.options.max_tokens = 32
    with connect(arguments.router, arguments.tls_dir) as channel:
        stub = router_pb2_grpc.RouterServiceStub(channel)
        try:
            for event in stub.Generate(request, timeout=120, metadata=metadata):
                if event.HasField("delta"):
                    print(event.delta.text, end="", flush=True)
                if event.HasField("finished"):
                    usage = event.finished.usage
                    print(f"\n{usage.completion_tokens} tokens, {usage.cached_tokens} of the prompt's "
                          f"{usage.prompt_tokens} from a checkpoint", file=sys.stderr)
        except grpc.RpcError as error:
            print(f"error {error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

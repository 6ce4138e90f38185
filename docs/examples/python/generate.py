#!/usr/bin/python3
"""Continues a text on a kvmesh and prints the answer as it comes."""
import argparse
import sys

import grpc
from kvmesh.v1 import router_pb2, router_pb2_grpc


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("router", help="its address, host:port")
    parser.add_argument("prompt")
    arguments = parser.parse_args()
    request = router_pb2.GenerateRequest(text=arguments.prompt, add_special_tokens=True)
    request.options.max_tokens = 32
    with grpc.insecure_channel(arguments.router) as channel:
        stub = router_pb2_grpc.RouterServiceStub(channel)
        try:
            for event in stub.Generate(request, timeout=120):
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

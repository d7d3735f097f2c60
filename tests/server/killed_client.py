"""A client program to be killed: starts streams on connections of their own, then waits.

Usage: killed_client.py ADDRESS COUNT SEED
"""

import random
import sys
import time

import grpc
from triton_world import infer_request
from tritonclient.grpc import service_pb2_grpc


def main(address: str, count: int, seed: int) -> None:
    choose = random.Random(seed)
    calls = []
    for index in range(count):
        channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        sampling = {"max_tokens": 2000, "ignore_eos": True}
        request = infer_request(
            f"Client {seed}-{index} counts:", stream=choose.random() < 0.7, sampling=sampling
        )
        calls.append((channel, stub.ModelStreamInfer(iter([request]))))
    print("sent", flush=True)
    time.sleep(600)


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

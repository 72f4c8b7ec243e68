"""Asks as Envoy does. Reads one request as JSON per line, and writes one answer as JSON per line."""

import json
import sys

import grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import json_format

address, authority = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None


def connect():
    if authority:
        with open(authority, "rb") as file:
            return grpc.secure_channel(address, grpc.ssl_channel_credentials(file.read()))
    return grpc.insecure_channel(address)


with connect() as channel:
    service = rls_pb2_grpc.RateLimitServiceStub(channel)
    # The service of health has messages of one field each; they are written by hand.
    health = channel.unary_unary("/grpc.health.v1.Health/Check")
    nothing = channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/Nothing")
    for line in sys.stdin:
        asked = json.loads(line)
        metadata = list(asked.get("metadata", {}).items())
        timeout = asked.get("timeout", 60)
        try:
            if asked.get("health") is not None:
                name = asked["health"].encode()
                body = b"\x0a" + bytes([len(name)]) + name if name else b""
                answer = {"health": list(health(body, timeout=timeout))}
            elif asked.get("raw") is not None:
                call = nothing if asked.get("nothing") else channel.unary_unary(
                    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
                call(bytes(asked["raw"]), timeout=timeout)
                answer = {}
            else:
                request = json_format.ParseDict(asked["request"], rls_pb2.RateLimitRequest())
                asks = service
                if asked.get("host"):
                    # Another name than that of the address, such as that of Envoy's cluster.
                    options = [("grpc.default_authority", asked["host"])]
                    other = grpc.insecure_channel(address, options=options)
                    asks = rls_pb2_grpc.RateLimitServiceStub(other)
                reply = asks.ShouldRateLimit(request, timeout=timeout, metadata=metadata)
                answer = json_format.MessageToDict(reply)
        except grpc.RpcError as error:
            answer = {"error": error.code().name, "details": error.details()}
        print(json.dumps(answer), flush=True)

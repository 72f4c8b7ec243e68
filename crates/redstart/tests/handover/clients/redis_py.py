"""Counts up while the data moves, and follows it.

Writes a line `<acknowledged> <moves>` after every count. Ends when its stdin does.
"""

import sys
import threading

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

address, key = sys.argv[1], sys.argv[2]


def connect(address):
    host, port = address.rsplit(":", 1)
    # A write whose reply is lost is not sent again.
    return redis.Redis(host=host, port=int(port), retry=Retry(NoBackoff(), 0))


stop = threading.Event()


def wait():
    sys.stdin.read()
    stop.set()


threading.Thread(target=wait, daemon=True).start()
client = connect(address)
acknowledged = moves = 0
while not stop.is_set():
    try:
        client.incr(key)
    except redis.ResponseError as error:
        words = str(error).split()
        if len(words) != 2 or words[0] != "REDIRECT":
            raise
        # Nothing was done there.
        client = connect(words[1])
        moves += 1
        continue
    acknowledged += 1
    print(acknowledged, moves, flush=True)

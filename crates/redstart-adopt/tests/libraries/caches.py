"""Old cache clients as the other side of a test.

    python caches.py PORT PREFIX

Reads lines of JSON and answers each with JSON:

    ["set", key, value, seconds]   Django's cache stores a value (seconds may be null)
    ["set-date", key]              Django's cache stores a date
    ["get", key]                   what Django's cache returns; a date as its text
    ["plain-set", key, value, seconds], ["plain-get", key]   the same as plain JSON under PREFIX + key
    ["incr", key]                  Django's cache adds one
"""

import datetime
import json
import sys

import redis
from django.conf import settings

PORT, PREFIX = int(sys.argv[1]), sys.argv[2]
URL = f"redis://127.0.0.1:{PORT}/0"
settings.configure(
    CACHES={"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": URL, "KEY_PREFIX": PREFIX}}
)
from django.core.cache import cache  # noqa: E402

client = redis.Redis(port=PORT)


def answer(what, key, *args):
    if what == "set":
        cache.set(key, *args)
    elif what == "set-date":
        cache.set(key, datetime.date(2026, 11, 16), 600)
    elif what == "get":
        return cache.get(key)
    elif what == "incr":
        return cache.incr(key)
    elif what == "plain-set":
        value, seconds = args
        client.set(PREFIX + key, json.dumps(value), ex=seconds)
    elif what == "plain-get":
        found = client.get(PREFIX + key)
        return None if found is None else json.loads(found)


for line in sys.stdin:
    print(json.dumps(answer(*json.loads(line)), default=str), flush=True)

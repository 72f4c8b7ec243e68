"""A healthy instance of each library of PyPI, made by the library itself.

    python specimens.py PORT

Locks are held for ten minutes, so that recognition finds them.
"""

import sys

PORT = int(sys.argv[1])
URL = f"redis://127.0.0.1:{PORT}/0"


def celery_():
    from celery import Celery

    app = Celery("shop", broker=URL, backend=URL)

    @app.task(name="shop.charge")
    def charge(order):
        return order

    first = charge.delay(1)
    charge.apply_async((2,), priority=3)
    charge.apply_async((3,), countdown=600)
    app.backend.store_result(first.id, 7, "SUCCESS")


def rq_():
    import redis
    import rq

    queue = rq.Queue("default", connection=redis.Redis(port=PORT))
    queue.enqueue("shop.charge", 1)
    queue.enqueue("shop.charge", 2)
    worker = rq.SimpleWorker([queue], connection=redis.Redis(port=PORT))
    worker.register_birth()


def dramatiq_():
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=URL)
    dramatiq.set_broker(broker)

    @dramatiq.actor(actor_name="charge", queue_name="billing")
    def charge(order):
        return order

    charge.send(1)
    charge.send(2)
    charge.send_with_options(args=(3,), delay=600_000)


def lock():
    import redis

    held = redis.Redis(port=PORT).lock("lock:order:5001", timeout=600)
    assert held.acquire(blocking=False)
    other = redis.Redis(port=PORT).lock("lock:order:5002", timeout=600)
    assert other.acquire(blocking=False)
    # Releasing loads the script of the library.
    third = redis.Redis(port=PORT).lock("lock:order:5003", timeout=600)
    assert third.acquire(blocking=False)
    third.release()


def limits_():
    import limits
    from limits.storage import RedisStorage
    from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

    storage = RedisStorage(URL)
    FixedWindowRateLimiter(storage).hit(limits.parse("10/hour"), "api", "203.0.113.9")
    MovingWindowRateLimiter(storage).hit(limits.parse("20/hour"), "web", "203.0.113.9")


def django_():
    from django.conf import settings

    settings.configure(
        CACHES={
            "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": URL, "KEY_PREFIX": "shop"},
            "other": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": URL, "KEY_PREFIX": "blog"},
        }
    )
    from django.core.cache import caches

    for name in ("default", "other"):
        caches[name].set("product:1", {"name": "tea", "price": 7}, 3600)
        caches[name].set("product:2", {"name": "cup", "price": 9}, 3600)
        caches[name].set("visits", 12, 3600)


for make in (celery_, rq_, dramatiq_, lock, limits_, django_):
    make()

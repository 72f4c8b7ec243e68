//! The table behind the guide: one entry per pattern of the tour, and a few for what surrounds the patterns.

/// What a pattern is for, what it is built on, and what it does not promise.
pub(crate) struct Entry {
    pub(crate) pattern: &'static str,
    /// The need, as a person would say it.
    pub(crate) need: &'static str,
    /// Other words that people use for it.
    pub(crate) words: &'static str,
    /// Names in other languages, separated by spaces. A question that contains one of them means this pattern.
    pub(crate) foreign: &'static str,
    pub(crate) feature: &'static str,
    pub(crate) cost: &'static str,
    pub(crate) not_promised: &'static str,
    /// What people write by hand, and what is wrong with it.
    pub(crate) replaces: &'static str,
    pub(crate) snippet: &'static str,
}

pub(crate) const ENTRIES: &[Entry] = &[
    Entry {
        pattern: "cache_aside",
        need: "keep database rows in a cache",
        words: "cache row database slow query store value",
        foreign: "缓存 旁路缓存 キャッシュ 캐시 кэш кеш zwischenspeicher caché",
        feature: "GET, a lease token, Lua",
        cost: "a hit: one GET",
        not_promised: "that a value is newer than its TTL",
        replaces: "GET, miss, load, SET: the fill after an invalidation that stays stale for a whole TTL",
        snippet: r##"let products = Cache::<u64, Product>::builder(&store, "shop", "product")
    .ttl(Duration::from_secs(3600))
    .build()?;
let hit = products.get_or_load(&id, |_| async move { db.find(id).await.map(Loaded::from) }).await?;
products.invalidate(&id).await?;   // after the row changed"##,
    },
    Entry {
        pattern: "stampede_lease",
        need: "load a cold key once for a thousand callers",
        words: "stampede thunder herd dogpile same key thousand request load once",
        foreign: "缓存击穿 缓存雪崩 惊群 スタンピード 캐시스탬피드",
        feature: "a lease beside the key, sharded pub/sub",
        cost: "a miss: two round trips; waiters: one message",
        not_promised: "one load when the loader dies: the lease ends first",
        replaces: "SET NX as a lock with a sleep loop, or nothing at all",
        snippet: r##"let cache = Cache::<u64, Page>::builder(&store, "shop", "page")
    .ttl(Duration::from_secs(60))
    .stampede(Stampede::Lease)     // one loader over all processes; the default
    .load_timeout(Duration::from_secs(2), Duration::from_secs(10))
    .build()?;"##,
    },
    Entry {
        pattern: "early_refresh",
        need: "never let a hot key expire under its readers",
        words: "hot key expire refresh ahead early xfetch latency spike",
        foreign: "提前刷新 热点key 热点 ホットキー",
        feature: "the load time kept with the value",
        cost: "nothing but the refresh itself",
        not_promised: "freshness beyond the TTL",
        replaces: "a cron job that warms the cache, or a random early expiry that ignores the load time",
        snippet: r##"let cache = Cache::<u64, Page>::builder(&store, "shop", "page")
    .ttl(Duration::from_secs(60))
    .early(XFetch { beta: 1.0 })
    .build()?;"##,
    },
    Entry {
        pattern: "negative_cache",
        need: "remember that something does not exist",
        words: "absent missing not found 404 negative null penetration",
        foreign: "缓存穿透 空值缓存",
        feature: "a mark in the envelope with its own TTL",
        cost: "one GET",
        not_promised: "anything about errors: they are not cached",
        replaces: "caching an empty string or the word null",
        snippet: r##"let users = Cache::<u64, User>::builder(&store, "shop", "user")
    .ttl(Duration::from_secs(600))
    .negative_ttl(Duration::from_secs(30))
    .build()?;
let hit = users.get_or_load(&id, |_| async { Ok::<_, Error>(Loaded::Absent) }).await?;"##,
    },
    Entry {
        pattern: "cache_tags",
        need: "invalidate many entries at once",
        words: "tag group invalidate all of brand category many entries",
        foreign: "标签失效 批量失效 タグ",
        feature: "a version for each tag",
        cost: "reads: the tags' versions with the value",
        not_promised: "which keys had the tag (Tags::Index does)",
        replaces: "KEYS product:* and DEL",
        snippet: r##"cache.get_or_load(&id, |load| async move {
    load.tag("brand:acme")?;
    Ok::<_, Error>(Loaded::Found(row))
}).await?;
cache.invalidate_tag("brand:acme").await?;"##,
    },
    Entry {
        pattern: "cache_invalidation",
        need: "keep values in the process and learn of changes",
        words: "local memory l1 near cache process instances invalidate tracking",
        foreign: "本地缓存 多级缓存 二级缓存 缓存失效",
        feature: "memory of the process, client tracking or pub/sub",
        cost: "a hit: no round trip",
        not_promised: "the new value before the message arrives",
        replaces: "an in-process map with a TTL that may be too long",
        snippet: r##"let cache = Cache::<u64, Product>::builder(&store, "shop", "product")
    .ttl(Duration::from_secs(3600))
    .l1(L1::tracking(10_000))      // or L1::pubsub(10_000)
    .build()?;
let fresh = cache.get_remote(&id).await?;   // past the first level"##,
    },
    Entry {
        pattern: "write_through",
        need: "write the database and the cache together",
        words: "write update row cache consistent both",
        foreign: "直写 写穿 双写 数据一致性 ライトスルー",
        feature: "a fence on the key, row versions",
        cost: "a write: two round trips and the commit",
        not_promised: "that readers see the row before the commit",
        replaces: "write, then DEL, and a crash between the two",
        snippet: r##"let write = WriteThrough::new(&cache);
write.put(&id, async {
    let row = db.update(id, price).await?;       // … RETURNING version
    Ok::<_, DbError>(Written::row(row.value, row.version))
}).await?;"##,
    },
    Entry {
        pattern: "write_behind",
        need: "take writes fast and store them later in batches",
        words: "write back buffer batch later database absorb write counter views",
        foreign: "异步回写 写回 回写 ライトビハインド",
        feature: "a value and its stream entry in one script",
        cost: "a write: one round trip",
        not_promised: "that a row is in the database when put returns",
        replaces: "a list of dirty keys and a cron job that forgets them when it crashes",
        snippet: r##"let sink = SqlSink::connect("postgres://…", "views").await?.column("count", |n: &u64| (*n).into());
let views = WriteBehind::<str, u64>::builder(&store, "shop", "views", sink).build()?;
let worker = views.work()?;
views.put("home", &42).await?;                    // read back at once
views.flush(Duration::from_secs(10)).await?;      // now it is in the table"##,
    },
    Entry {
        pattern: "sorted_view",
        need: "page through a sorted list that is costly to sort",
        words: "sort order list page view ranking by field",
        foreign: "排序视图 分页",
        feature: "SORT … STORE with a TTL",
        cost: "a page: one LRANGE",
        not_promised: "that the view is newer than its TTL",
        replaces: "SORT on every request",
        snippet: r##"let cheapest = SortedView::builder(&store, "shop", "by-price", "products")
    .ttl(Duration::from_secs(30))
    .by("price_*")
    .get("#")
    .build()?;
let page = cheapest.page(0..20).await?;"##,
    },
    Entry {
        pattern: "fixed_window",
        need: "a simple limit per minute or day",
        words: "limit rate quota per minute hour day simple count request",
        foreign: "固定窗口 计数器限流",
        feature: "one counter per window",
        cost: "one script",
        not_promised: "the limit across a boundary: up to twice as much",
        replaces: "INCR, then EXPIRE: a crash between them blocks the user for ever",
        snippet: r##"let daily = Limiter::fixed_window(&store, "shop", "export", Quota::per_day(20))
    .on_store_down(Down::Refuse)
    .build()?;
if !daily.check("user:42", 1).await?.is_allowed() { /* 429 */ }"##,
    },
    Entry {
        pattern: "sliding_window",
        need: "an exact limit in every rolling window",
        words: "limit rate exact rolling sliding log login attempt",
        foreign: "滑动窗口 滑动日志 スライディングウィンドウ",
        feature: "a sorted set of what was admitted",
        cost: "one script; memory grows with the limit",
        not_promised: "constant memory",
        replaces: "ZADD first and count later, which counts refused requests too",
        snippet: r##"let logins = Limiter::sliding_window(&store, "shop", "login", Quota::per(5, Duration::from_secs(60)))
    .on_store_down(Down::Refuse)
    .build()?;"##,
    },
    Entry {
        pattern: "sliding_counter",
        need: "a rolling limit in constant memory",
        words: "limit rate rolling sliding approximate many users constant memory",
        foreign: "滑动计数",
        feature: "two counters",
        cost: "one script",
        not_promised: "exactness: its error is measured and in its docs",
        replaces: "two counters read and written in two steps",
        snippet: r##"let api = Limiter::sliding_counter(&store, "shop", "api", Quota::per_minute(600))
    .on_store_down(Down::Allow)
    .build()?;"##,
    },
    Entry {
        pattern: "token_bucket",
        need: "limit api calls and allow bursts",
        words: "limit rate throttle api call request burst steady gcra too many",
        foreign: "限流 令牌桶 漏桶 流控 レート制限 トークンバケット 처리율 토큰버킷 ratenbegrenzung ограничение запросов límite de peticiones limite de débit limite de taxa",
        feature: "one key whose TTL is the debt",
        cost: "one script, 5 µs; refusals none with the deny cache",
        not_promised: "an exact count in a calendar window",
        replaces: "a hash with the client's clock in it",
        snippet: r##"let limiter = Limiter::token_bucket(&store, "shop", "api", Quota::per_second(10).burst(100))
    .deny_cache(10_000)
    .on_store_down(Down::Refuse)
    .build()?;
match limiter.check("user:42", 1).await? {
    Decision::Allowed(_) => serve(),
    Decision::Limited { retry_after, .. } => too_many(retry_after),
    Decision::Never { max } => too_large(max),
}"##,
    },
    Entry {
        pattern: "mutex",
        need: "let only one process do something at a time",
        words: "lock mutex only one worker exclusive process at time critical section twice",
        foreign: "分布式锁 互斥锁 锁 排他制御 分散ロック 분산락 분산 락 распределённая блокировка блокировка sperre verteilte sperre cerrojo verrou exclusão mútua",
        feature: "SET NX PX, Lua, sharded pub/sub",
        cost: "acquire and release: one round trip each",
        not_promised: "exclusion after a failover that lost the key: use the fence token",
        replaces: "SETNX without an owner, which any process can release",
        snippet: r##"let lock = Mutex::builder(&store, "shop", "order:5001").ttl(Duration::from_secs(30)).build()?;
let run = lock.with(Duration::from_secs(5), |lease| async move {
    charge(lease.fence()).await        // dropped if the lease is lost
}).await?;
match run {
    LockedRun::Done(charged) => charged?,
    LockedRun::Busy => {}              // somebody else holds it; nothing was done
    LockedRun::Lost(_) => {}           // the token protects what was written
}"##,
    },
    Entry {
        pattern: "fencing",
        need: "refuse writes from a holder that lost its lock",
        words: "fence fencing token stale holder zombie pause gc late write",
        foreign: "栅栏令牌 fencing 隔离令牌",
        feature: "a token from the locking script, checked by the writing one",
        cost: "one round trip per write",
        not_promised: "anything for writes that do not carry the token",
        replaces: "trusting that no holder pauses for longer than the TTL",
        snippet: r##"let orders = FencedValues::new(&store, "shop", "orders")?;
match orders.set("5001", "paid", guard.fence()).await? {
    FencedWrite::Done => {}
    FencedWrite::Stale { .. } => { /* somebody else has the lock by now */ }
}"##,
    },
    Entry {
        pattern: "redlock",
        need: "a lock over several independent servers",
        words: "lock redlock quorum several server independent survive",
        foreign: "红锁 多数派",
        feature: "N stores, a quorum",
        cost: "one round trip to all at once",
        not_promised: "safety beyond its validity: use the fence token",
        replaces: "asking the servers one after the other without a time-out",
        snippet: r##"let lock = Redlock::builder(stores, "shop", "order:5001").ttl(Duration::from_secs(10)).build()?;
if let Some(guard) = lock.lock(Duration::from_secs(5)).await? {
    guard.release().await?;
}"##,
    },
    Entry {
        pattern: "fair_lock",
        need: "a lock that serves in order of arrival",
        words: "lock fair fifo queue order arrival starve",
        foreign: "公平锁 排队锁 公平ロック",
        feature: "a leased queue beside the lock",
        cost: "one round trip and one message",
        not_promised: "speed: a stalled waiter at the head blocks the others until its lease expires",
        replaces: "a lock that the fastest poller always wins",
        snippet: r##"let till = FairMutex::builder(&store, "shop", "till").build()?;
let guard = till.lock(Duration::from_secs(30)).await?;"##,
    },
    Entry {
        pattern: "rw_lock",
        need: "many readers or one writer",
        words: "lock reader writer shared exclusive read write",
        foreign: "读写锁 読み書きロック",
        feature: "leased readers in a sorted set",
        cost: "one round trip each",
        not_promised: "that readers never wait: a waiting writer goes first",
        replaces: "a counter of readers that a crash leaves above zero",
        snippet: r##"let catalogue = RwLock::builder(&store, "shop", "catalogue").build()?;
let reading = catalogue.read(Duration::from_secs(5)).await?;
let writing = catalogue.write(Duration::from_secs(5)).await?;"##,
    },
    Entry {
        pattern: "semaphore",
        need: "let at most n work at once",
        words: "semaphore permit concurrency at most limit parallel pool licence",
        foreign: "信号量 并发数 セマフォ 세마포어 семафор semáforo sémaphore",
        feature: "leased permits by server time",
        cost: "one round trip each",
        not_promised: "order of arrival",
        replaces: "INCR and DECR: a crash loses a permit for ever",
        snippet: r##"const PRINTERS: NonZeroU32 = NonZeroU32::new(3).unwrap();
let printers = Semaphore::new(&store, "office", "printers", PRINTERS)?;
if let Some(permit) = printers.acquire(Duration::from_secs(10)).await? {
    print().await;
    permit.release().await?;
}"##,
    },
    Entry {
        pattern: "leader",
        need: "elect one instance as the leader",
        words: "leader election elect primary scheduler singleton one instance active standby",
        foreign: "选主 主节点选举 リーダー選出 리더 선출 выбор лидера leaderwahl",
        feature: "a lock with a term and an observer",
        cost: "one renewal every third of the TTL",
        not_promised: "no gap between two leaders",
        replaces: "a lock that is renewed by a thread nobody watches",
        snippet: r##"let office = Leader::builder(&store, "shop", "scheduler").id("node-1").build()?;
if let Some(leadership) = office.campaign(Duration::from_secs(60)).await? {
    tokio::select! { () = leadership.lost() => {}, () = schedule() => {} }
}"##,
    },
    Entry {
        pattern: "legacy_lock",
        need: "share a lock with old SETNX clients",
        words: "lock legacy old setnx getset migrate historic",
        foreign: "旧锁 setnx锁",
        feature: "the old form: a time stamp as the value",
        cost: "one round trip",
        not_promised: "safety when clients' clocks are wrong, as its docs explain",
        replaces: "rewriting all clients on one day",
        snippet: r##"let lock = LegacyLock::builder(&store, "shop", "foo")
    .layout(Layout::new(|name| format!("lock.{name}")))
    .build()?;
let guard = lock.try_lock().await?;      // honours old clients, and they honour it"##,
    },
    Entry {
        pattern: "circuit_breaker",
        need: "stop calling a service that fails",
        words: "circuit breaker fail service down trip open half probe resilience protect",
        foreign: "熔断 熔断器 断路器 サーキットブレーカー 서킷브레이커 предохранитель cortacircuitos disjoncteur sicherung",
        feature: "shared state, generations, leased probes",
        cost: "closed: no round trip per call",
        not_promised: "that the first calls to a failing service are avoided",
        replaces: "a separate breaker in each process",
        snippet: r##"let payments = Breaker::builder(&store, "shop", "payments")
    .failure_rate(0.5).min_calls(20).distinct_instances(2)
    .open_for(Duration::from_secs(30)).probes(3)
    .open().await?;
match payments.call(async || pay().await).await {
    Err(CallError::Open { retry_after }) => later(retry_after),
    result => handle(result),
}"##,
    },
    Entry {
        pattern: "stock",
        need: "sell limited stock without overselling",
        words: "stock inventory flash sale oversell reserve hold item sold seat ticket",
        foreign: "秒杀 库存 超卖 在庫 재고 склад lagerbestand inventario",
        feature: "one script: hold, cap, order stream",
        cost: "a reservation: one round trip",
        not_promised: "that held units are sold: holds expire",
        replaces: "DECR without a check, or GET then SET",
        snippet: r##"let stock = Stock::builder(&store, "shop", "spring").per_user(2).build()?;
stock.prewarm("console", 1000, Duration::from_secs(3600)).await?;
let request = Request::new("console", "ann", "req-1");
if let Reserve::Held { .. } = stock.reserve(&request, 1, Duration::from_secs(300)).await? {
    stock.confirm(&request).await?;
}"##,
    },
    Entry {
        pattern: "job_queue",
        need: "run jobs in the background, each at least once",
        words: "job queue background worker task mail send async process retry",
        foreign: "任务队列 消息队列 异步任务 队列 ジョブキュー 작업큐 очередь задач warteschlange cola de trabajos file de tâches fila de tarefas",
        feature: "a stream-like log in one slot, leases, fenced acks",
        cost: "enqueue: one round trip; acks in batches",
        not_promised: "exactly once: make the effect idempotent with cx.once",
        replaces: "LPUSH and BRPOP, which lose the job if the worker dies",
        snippet: r##"impl Job for SendMail { const NAME: &'static str = "send_mail"; }
let queue = Queue::new(&store, "shop", "mail")?;
queue.enqueue(&SendMail { to }).unique("welcome:42", Until::Done).await?;
let worker = queue.worker(|mail: SendMail, cx: Context| async move { send(mail).await })
    .concurrency(64).retry(Backoff::default(), 5)
    .run().await?;
worker.shutdown(Duration::from_secs(30)).await?;"##,
    },
    Entry {
        pattern: "dead_letter",
        need: "keep jobs that failed too often, and replay them",
        words: "dead letter failed job replay poison inspect error reason",
        foreign: "死信 死信队列 デッドレター",
        feature: "a stream of dead letters",
        cost: "nothing until a job dies",
        not_promised: "that a replayed job succeeds",
        replaces: "a log line and a lost job",
        snippet: r##"let letters = queue.inspect().dead_letters();
for letter in letters.list(None).await? { println!("{}", letter.reason); }
letters.replay(|letter| letter.reason.contains("timeout")).await?;"##,
    },
    Entry {
        pattern: "delayed_jobs",
        need: "run a job later or on a schedule",
        words: "delay later schedule cron timer job at time recurring remind",
        foreign: "延迟队列 延时任务 定时任务 遅延 지연 큐 отложенные задачи",
        feature: "a sorted set by server time",
        cost: "one script when something is due",
        not_promised: "the exact millisecond",
        replaces: "a sleep in a process that may restart before it ends",
        snippet: r##"queue.enqueue(&Reminder { user }).delay(Duration::from_secs(3600)).await?;
queue.cron("nightly", "0 3 * * *", &Report, Missed::RunOnce).time_zone("Europe/Berlin").await?;"##,
    },
    Entry {
        pattern: "priority_queue",
        need: "serve the most urgent first",
        words: "priority urgent queue important first order",
        foreign: "优先级队列 優先度 우선순위 очередь с приоритетом",
        feature: "a sorted set, BZPOPMIN, reservations",
        cost: "one round trip each",
        not_promised: "that low priorities are ever served (the job queue ages them)",
        replaces: "several lists polled in turn",
        snippet: r##"let calls = PriorityQueue::<Call>::new(&store, "shop", "calls")?;
calls.push(&call, 0).await?;                       // 0 is most urgent
let mut consumer = calls.consumer(Duration::from_secs(30)).await?;
if let Some(call) = consumer.reserve(Duration::from_secs(5)).await? { call.done().await?; }"##,
    },
    Entry {
        pattern: "reliable_list",
        need: "a list queue for producers that LPUSH",
        words: "list queue lpush brpop reliable old producer simple work",
        foreign: "可靠队列 列表队列",
        feature: "BLMOVE to a list for each consumer, leases",
        cost: "one blocking command per item",
        not_promised: "attempts or dead letters: use the job queue",
        replaces: "BRPOP: the item is lost if its consumer dies",
        snippet: r##"let list = ReliableList::builder(&store, "shop", "orders").build()?;
let mut consumer = list.consumer().await?;
while let Some(item) = consumer.take(Duration::from_secs(5)).await? {
    handle(item.payload());
    item.done().await?;
}"##,
    },
    Entry {
        pattern: "ring",
        need: "visit all items again and again with many workers",
        words: "ring round robin cycle poll feed crawl rotate again",
        foreign: "环形 轮询 ラウンドロビン",
        feature: "LMOVE from a list to itself",
        cost: "one script per visit",
        not_promised: "equal time between visits",
        replaces: "a cursor in a key that two workers read at once",
        snippet: r##"let feeds = Ring::new(&store, "crawler", "feeds")?;
feeds.add("https://example.com/feed").await?;
while let Some(visit) = feeds.next().await? { fetch(&visit.item, visit.lap).await; }"##,
    },
    Entry {
        pattern: "notification",
        need: "know which things changed, once each",
        words: "notify changed dirty set wake event coalesce which",
        foreign: "通知 变更集合",
        feature: "a set and an event list",
        cost: "one script to add; a blocking take",
        not_promised: "how often something changed",
        replaces: "pub/sub, whose messages are lost while a consumer restarts",
        snippet: r##"let changed = NotifySet::new(&store, "shop", "changed")?;
changed.add(&["user 7"]).await?;
let taken = changed.consumer().take(100, Duration::from_secs(5)).await?;"##,
    },
    Entry {
        pattern: "topic",
        need: "tell everybody who is listening right now",
        words: "pub sub publish subscribe broadcast message live push topic event",
        foreign: "发布订阅 广播 パブサブ 발행 구독 подписка",
        feature: "sharded pub/sub, typed",
        cost: "one SPUBLISH",
        not_promised: "delivery to clients that are not connected: gaps are reported",
        replaces: "PUBLISH, without a way to notice lost messages",
        snippet: r##"let goals = Topic::<Goal>::new(&store, "news", "goals")?;
let mut listener = goals.listen().await?;
goals.publish(&goal).await?;
match listener.next().await { Some(Heard::Gap) => reload(), other => show(other) }"##,
    },
    Entry {
        pattern: "event_stream",
        need: "keep events for several groups of readers",
        words: "event stream log history replay consumer group kafka append",
        foreign: "事件流 消费组 イベントストリーム 이벤트 스트림 поток событий",
        feature: "a stream with groups",
        cost: "append: one XADD",
        not_promised: "exactly once",
        replaces: "XADD MAXLEN, which trims what a group has not read",
        snippet: r##"let orders = EventStream::<Order>::new(&store, "shop", "orders")?;
let mut billing = orders.group("billing", Start::Beginning).await?;
orders.append(&order).await?;
let events = billing.read("billing-1", 100, Duration::from_secs(5)).await?;
billing.ack(&events.iter().map(|e| &e.id).collect::<Vec<_>>()).await?;"##,
    },
    Entry {
        pattern: "session",
        need: "keep users logged in, and log them out everywhere",
        words: "session login logout log out everywhere user cookie token auth web",
        foreign: "会话 登录 单点登录 セッション 세션 сессия sitzung sesión sessão",
        feature: "a hash per session, an index per user",
        cost: "load and touch: one script",
        not_promised: "secrecy of what you put into it",
        replaces: "a token in the key, and a patch that revives a deleted session",
        snippet: r##"let sessions = Sessions::builder(&store, "shop", "web").idle(Duration::from_secs(1800)).build()?;
let token = sessions.create("ann", &data).await?;
sessions.patch(&token, &serde_json::json!({ "cart": [7] })).await?;
sessions.revoke_all("ann").await?;                 // logout everywhere"##,
    },
    Entry {
        pattern: "trail",
        need: "the last pages of a visit",
        words: "trail history recent page breadcrumb last visited navigation",
        foreign: "足迹 浏览记录 最近浏览",
        feature: "a list, trimmed and expired in one step",
        cost: "one script",
        not_promised: "anything after a minute without a page",
        replaces: "RPUSH without LTRIM",
        snippet: r##"let trail = Trail::new(&store, "shop", "pages")?;
trail.visit("ann", "/tea").await?;
let pages = trail.pages("ann").await?;"##,
    },
    Entry {
        pattern: "leaderboard",
        need: "rank players by score",
        words: "leaderboard rank game score player top highscore lead board",
        foreign: "排行榜 排名 ランキング リーダーボード 리더보드 랭킹 таблица лидеров bestenliste rangliste clasificación classement",
        feature: "a sorted set; submit and rank in one script",
        cost: "one round trip, O(log n)",
        not_promised: "certainty after a lost reply: repeat Best and Last, but a Sum is in doubt",
        replaces: "ZADD, then ZREVRANK, with another submission in between",
        snippet: r##"let board = Leaderboard::builder(&store, "game", "all-time")
    .ties(Ties::EarliestFirst { max_points: 1_000_000 })
    .build()?;
let placed = board.submit("ann", 300.0, Policy::Best).await?;
let near = board.around("ann", 5).await?;"##,
    },
    Entry {
        pattern: "period_leaderboard",
        need: "a board that starts over every week",
        words: "leaderboard weekly daily monthly period season reset board",
        foreign: "周榜 日榜 月榜 週間ランキング",
        feature: "a key for each period, expiry in the script",
        cost: "one round trip",
        not_promised: "scores for a week that is over",
        replaces: "a cron job that renames keys at midnight",
        snippet: r##"let weekly = Leaderboard::builder(&store, "game", "weekly")
    .period(Period::Week, TimeZone::get("Europe/Berlin")?, Duration::from_secs(8 * 86400))
    .build()?;
weekly.submit("ann", 10.0, Policy::Sum).await?;
let top = weekly.top(10).await?;"##,
    },
    Entry {
        pattern: "sharded_leaderboard",
        need: "rank hundreds of millions",
        words: "leaderboard huge shard global rank million cluster scale",
        foreign: "全服排名 分片排行榜",
        feature: "a sorted set for each shard",
        cost: "rank: two round trips",
        not_promised: "a consistent snapshot over all shards",
        replaces: "one sorted set on one node, or approximate ranks",
        snippet: r##"let world = ShardedLeaderboard::builder(&store, "game", "world").shards(256).build()?;
world.submit("ann", 300.0, Policy::Best).await?;
let entry = world.rank("ann").await?;              // exact"##,
    },
    Entry {
        pattern: "weighted_choice",
        need: "draw at random by weight",
        words: "random weight choice pick draw loot lottery ab test",
        foreign: "抽奖 加权随机 抽選 가중치",
        feature: "a tree of sums in a hash",
        cost: "a draw: one script, O(log n)",
        not_promised: "anything cryptographic",
        replaces: "copying the whole set to draw from it",
        snippet: r##"let loot = WeightedChoice::new(&store, "game", "loot")?;
loot.set("common", 90).await?;
loot.set("rare", 10).await?;
let item = loot.pick().await?;"##,
    },
    Entry {
        pattern: "counter",
        need: "count exactly and hand off the count",
        words: "counter count clicks increment total drain exact",
        foreign: "计数器 点赞 阅读量 カウンター 카운터 счётчик zähler contador compteur",
        feature: "INCRBY with its lifetime, a batch with an id",
        cost: "one round trip",
        not_promised: "that a batch arrives once: check its id",
        replaces: "GETSET 0, and a crash before the sum is stored",
        snippet: r##"let clicks = Counter::new(&store, "shop", "clicks", Keep::For(Duration::from_secs(86400)))?;
clicks.add("banner", 1).await?;
if let Some(drained) = clicks.drain("banner").await? {
    db.insert(&drained.id, drained.count).await?;  // unique by id
    clicks.ack("banner", &drained.id).await?;
}"##,
    },
    Entry {
        pattern: "unique_visitors",
        need: "count different visitors by day, week, month",
        words: "unique visitors count distinct people dau hyperloglog estimate different",
        foreign: "独立访客 基数统计 去重计数 ユニークユーザー 순방문자 уникальные посетители",
        feature: "HyperLogLog for each day, roll-ups",
        cost: "12 KB per day; one round trip",
        not_promised: "exactness: 0.81 % standard error; no intersections",
        replaces: "a set of all ids for every day",
        snippet: r##"let visitors = Uniques::new(&store, "site", "visitors", Keep::For(Duration::from_secs(90 * 86400)))?;
visitors.add_today("home", ["ann", "bob"]).await?;
let week = visitors.count("home", &DaySpan::Week(visitors.today().await?)).await?;"##,
    },
    Entry {
        pattern: "check_ins",
        need: "days in a row, and a calendar",
        words: "check in daily streak calendar habit sign days row",
        foreign: "签到 连续签到 打卡 チェックイン 출석",
        feature: "a bitmap for each year",
        cost: "46 bytes per user and year; one round trip",
        not_promised: "the user's local date: the application passes it",
        replaces: "a counter that a missed reset keeps alive",
        snippet: r##"let check_ins = CheckIns::new(&store, "app", "visits", Keep::Forever)?;
check_ins.mark("ann", date(2026, 11, 15)).await?;
let streaks = check_ins.streaks("ann", date(2026, 11, 15)).await?;
println!("{}", check_ins.month("ann", date(2026, 11, 1)).await?);"##,
    },
    Entry {
        pattern: "activity",
        need: "active users and who came back",
        words: "active user dau wau mau retention cohort bitmap came back",
        foreign: "日活 月活 活跃用户 留存 アクティブユーザー",
        feature: "a bitmap for each day, BITOP",
        cost: "one bit per user and day",
        not_promised: "low memory use for sparse ids: use unique_visitors",
        replaces: "SETBIT with a user id of four billion",
        snippet: r##"let active = Activity::new(&store, "app", "active", 10_000_000, Keep::For(Duration::from_secs(60 * 86400)))?;
active.mark("web", today, &[1, 2, 3]).await?;
let monthly = active.monthly("web", today).await?;
let retained = active.retained("web", last_week, today).await?;"##,
    },
    Entry {
        pattern: "bloom",
        need: "has this been seen before",
        words: "bloom filter seen before duplicate membership contain crawl url",
        foreign: "布隆过滤器 布隆 去重 ブルームフィルター 블룸필터 фильтр блума",
        feature: "BF.* or bitmaps, config checked in the script",
        cost: "one script for a thousand elements",
        not_promised: "a certain yes: false positives occur at the error rate you choose",
        replaces: "single SETBIT calls with a home-made formula",
        snippet: r##"let seen = Bloom::builder(&store, "crawler", "urls").capacity(1_000_000).error_rate(0.001).create().await?;
if seen.add(url).await? { crawl(url).await; }
let known = seen.contains_many(&urls).await?;"##,
    },
    Entry {
        pattern: "places",
        need: "who or what is near",
        words: "near nearby geo location distance place map friend courier radius around me",
        foreign: "附近的人 地理位置 位置检索 近く 위치 рядом in der nähe cerca",
        feature: "GEO commands, an expiry index",
        cost: "one script",
        not_promised: "distance by road: it is the straight-line distance",
        replaces: "a box of degrees that breaks at the antimeridian",
        snippet: r##"let couriers = Places::builder(&store, "shop", "couriers").stale_after(Duration::from_secs(60)).build()?;
couriers.put("ann", Position::new(13.36, 38.11)?).await?;
let near = couriers.nearby("ann", Area::Radius(5_000.0)).limit(10).exclude_self().find().await?;"##,
    },
    Entry {
        pattern: "graph",
        need: "who follows whom",
        words: "follow follower friend social graph suggest mutual block network",
        foreign: "关注 粉丝 好友 社交 共同关注 フォロー 팔로우 подписчики",
        feature: "sorted sets on both sides, one script or an intent",
        cost: "follow: one script",
        not_promised: "atomicity over two slots: after a crash, repair completes the change",
        replaces: "two SADDs, and a crash between them",
        snippet: r##"let graph = Graph::new(&store, "app", "people")?;
graph.follow("ann", "bob").await?;
let page = graph.followers("bob", None, 50).await?;
let ideas = graph.suggestions("ann", 10).await?;"##,
    },
    Entry {
        pattern: "array",
        need: "fixed-size records by number",
        words: "array record index fixed size seat grid bitmap slot",
        foreign: "定长数组 配列",
        feature: "one string, GETRANGE and SETRANGE",
        cost: "one round trip",
        not_promised: "growth beyond its capacity",
        replaces: "a hash with a million fields",
        snippet: r##"let seats = FixedArray::<u32>::new(&store, "theatre", "stalls", 500)?;
seats.set(7, &4711).await?;
let buyer = seats.get(7).await?;"##,
    },
    Entry {
        pattern: "idempotency",
        need: "do something once although the request comes twice",
        words: "idempotency idempotent key charged twice double charge payment duplicate request retry once exactly",
        foreign: "幂等 重复提交 重复支付 防重 冪等 멱등 идемпотентность",
        feature: "a claim with a lease, the kept answer",
        cost: "two round trips per new request; a repeat: one",
        not_promised: "that an effect whose process died half-way is undone: its outcome is reported as unknown",
        replaces: "SETNX on the request id, which a crash leaves taken and a timeout frees too early",
        snippet: r##"let payments = Idempotency::new(&store, "shop", "payments")?;
match payments.run("order-5001", body, async move { Ok(charge(500).await?) }).await? {
    Run::Done(receipt) | Run::Replayed(receipt) => reply(receipt),
    Run::NotDone(refusal) => declined(refusal),
    Run::Busy { retry_after } => later(retry_after),
    Run::Mismatch => conflict(),
    Run::Unknown(_) => ask_the_bank(),
}"##,
    },
    Entry {
        pattern: "http_layers",
        need: "limits, sessions and idempotency keys in an HTTP service",
        words: "http axum tower layer middleware header 429 cookie web service api server idempotency-key",
        foreign: "中间件 网关 ミドルウェア 미들웨어",
        feature: "tower layers of the crate redstart-tower",
        cost: "that of the pattern behind each layer",
        not_promised: "protection of routes outside the layer",
        replaces: "a check in every handler, forgotten in one",
        snippet: r##"let app = Router::new()
    .route("/pay", post(pay))
    .layer(IdempotencyLayer::new(payments, Subject::user()))
    .layer(LimitLayer::new(limiter, Subject::user()))
    .layer(CookieLayer::new(sessions));"##,
    },
    Entry {
        pattern: "manual_clock",
        need: "test time-outs and limits without waiting",
        words: "test clock time mock advance fake unit testing sleep wait fast deterministic",
        foreign: "测试 时钟 テスト 테스트",
        feature: "the clock of the embedded engine",
        cost: "no time at all",
        not_promised: "a manual clock on a real server",
        replaces: "sleep in tests, or a mock client without expiry",
        snippet: r##"let store = Store::connect("memory://").await?;
let daily = Limiter::fixed_window(&store, "shop", "export", Quota::per_day(1)).build()?;
assert!(daily.check("ann", 1).await?.is_allowed());
assert!(!daily.check("ann", 1).await?.is_allowed());
store.advance(Duration::from_secs(86_400))?;      // a day passes at once
assert!(daily.check("ann", 1).await?.is_allowed());"##,
    },
];

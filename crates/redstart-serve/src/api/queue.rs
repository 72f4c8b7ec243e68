//! Job queues: adding jobs, working on them from any language, and operating the queue.

use std::time::Duration;

use redstart::{Store, messaging::Queue};
use serde_json::json;

use crate::{
    auth::Role,
    call::Call,
    problem::Problem,
    route::{Route, Routes},
};

mod add;
mod bulk;
mod look;
mod operate;
mod work;

pub(crate) use bulk::{Action as BulkAction, Bulk, Bulks, Stage};
pub(crate) use look::{Told, parse_state, raw, search, search_from, state_name, told};
pub(crate) use operate::count_letters;
pub(crate) use work::DispatcherKey;

use add::*;
use bulk::*;
use look::*;
use operate::*;
use work::*;

const FAMILY: &str = "Queues";
const STATES: &str = "ready, delayed, running, parked, waiting, done or dead";
/// How long done jobs and their results can be asked for.
const KEPT: Duration = Duration::from_secs(3600);

pub(super) fn add_routes(routes: &mut Routes) {
    add_adding(routes);
    add_looking(routes);
    add_bulk(routes);
    add_working(routes);
    add_one_job(routes);
    add_operating(routes);
}

/// Adding jobs and flows.
fn add_adding(routes: &mut Routes) {
    let job = json!({"kind": "send_mail", "payload": {"to": "ann@example.com", "order": 9007199254740993_u64}, "priority": 3});
    routes.add(
        Route::post("/v1/queues/{name}/jobs", enqueue)
            .doc(FAMILY, "Add a job")
            .param("name", "mail")
            .body::<NewJob>(job.clone())
            .reply::<Added>(201, "The job was added")
            .reply::<Added>(200, "Another job holds the unique key")
            .status(409, "The queue is full"),
    );
    routes.add(
        Route::post("/v1/queues/{name}/jobs:many", enqueue_many)
            .doc(FAMILY, "Add many jobs")
            .param("name", "mail")
            .body::<NewJobs>(json!({"jobs": [
                job,
                {"kind": "send_mail", "payload": {"to": "bob@example.com"}, "delay": 60, "unique": {"key": "bob", "replace": true}},
                {"kind": "report", "payload": 5, "at": 4102444800_u64, "attempts": 3, "backoff": {"exponential": {"first": 1, "most": 60}},
                 "timeout": 30, "keep": 600},
                {"kind": "report", "payload": 6, "group": "acme", "backoff": {"fixed": 5}, "throttle": {"key": "acme", "period": 60}},
                {"kind": "index", "payload": 7, "debounce": {"key": "page:7", "period": 2}, "expires": 600},
            ]}))
            .reply::<AddedMany>(200, "One result for each job, in order")
            .reply::<AddedMany>(207, "The same, and some have an `error`: these were not added, or are in doubt")
            .status(400, "One of the jobs is invalid; none was added"),
    );
    routes.add(
        Route::post("/v1/queues/{name}/flows", add_flow)
            .doc(FAMILY, "Add a flow: jobs that run when other jobs are over")
            .param("name", "pages")
            .body::<NewFlow>(json!({
                "job": {"kind": "build_page", "payload": {"page": 7}, "children": [
                    {"kind": "resize", "payload": 320, "queue": "images", "attempts": 5},
                    {"kind": "resize", "payload": 640, "on_failure": "continue"},
                ]},
                "then": [{"kind": "publish", "payload": {"page": 7}}],
            }))
            .reply::<AddedFlow>(201, "All jobs were added")
            .status(409, "The queue is full"),
    );
    routes.add(
        Route::get("/v1/queues/{name}/jobs/{id}/children", children)
            .doc(
                FAMILY,
                "What became of the children of a job that is not over: its worker reads their results here",
            )
            .param("name", "pages")
            .param("id", "00000000000000000000000000000000")
            .reply::<Children>(200, "How many failed, and the results that are kept")
            .status(404, "There is no such job, or it is over"),
    );
}

/// Looking at many jobs.
fn add_looking(routes: &mut Routes) {
    routes.add(
        Route::get("/v1/queues/{name}", counts)
            .doc(FAMILY, "How many jobs are in each state")
            .param("name", "mail")
            .reply::<Counts>(200, "The counts"),
    );
    routes.add(
        filtered(
            Route::get("/v1/queues/{name}/jobs", list)
                .doc(FAMILY, "List jobs, or search their payloads"),
        )
        .query("from", "Where to go on: `next` of the answer before", "")
        .reply::<Jobs>(200, "One page, or what one step of a search has found"),
    );
    routes.add(
        filtered(
            Route::get("/v1/queues/{name}/jobs:search", search_stream).doc(
                FAMILY,
                "Search a queue of any size: server-sent events found, progress, problem and end. \
                 All searches together take turns; closing the connection ends one",
            ),
        )
        .query("limit", "End after so many (default 100)", 10)
        .query("from", "Where to go on: `next` of an event before", "")
        .status(200, "A stream of events"),
    );
}

/// Changing many jobs.
fn add_bulk(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/queues/{name}/bulk", begin_bulk)
            .by_hand("queue.bulk")
            .grants()
            .doc(
                FAMILY,
                "Change all jobs that match a filter, up to four million at a time. This counts them and changes nothing; \
                 confirm it to change them",
            )
            .param("name", "mail")
            .body::<NewBulk>(json!({"action": "retry", "state": "dead", "kind": "send_mail", "error": "connection refused"}))
            .reply::<BulkView>(202, "It is being counted")
            .status(400, "The action does not fit the state, or nothing says which jobs")
            .status(429, "Too many of them are under way"),
    );
    routes.add(
        Route::get("/v1/queues/{name}/bulk/{id}", look_bulk)
            .waits()
            .role(Role::Admin)
            .doc(FAMILY, "How far a change of many jobs is")
            .param("name", "mail")
            .param("id", "00000000000000000000000000000000")
            .query(
                "wait",
                "Seconds to wait until it is counted, or over (default 0)",
                1,
            )
            .reply::<BulkView>(200, "How far it is")
            .status(
                404,
                "It was forgotten, or another instance of the service has it",
            ),
    );
    routes.add(
        Route::post("/v1/queues/{name}/bulk/{id}:confirm", confirm_bulk)
            .by_hand("queue.bulk")
            .doc(FAMILY, "Change the jobs that were counted, and no others")
            .param("name", "mail")
            .param("id", "00000000000000000000000000000000")
            .body::<Confirm>(json!({"count": 0}))
            .reply::<BulkView>(202, "It is being done")
            .status(409, "It is not counted yet, or another number was counted"),
    );
    routes.add(
        Route::delete("/v1/queues/{name}/bulk/{id}", stop_bulk)
            .by_hand("queue.bulk")
            .doc(
                FAMILY,
                "Stop a change of many jobs. What is changed stays changed",
            )
            .param("name", "mail")
            .param("id", "00000000000000000000000000000000")
            .reply::<BulkView>(200, "It stops"),
    );
}

/// Working on jobs.
fn add_working(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/queues/{name}:lease", lease)
            .waits()
            .doc(FAMILY, "Take jobs to work on, waiting for some if asked to")
            .param("name", "mail")
            .body::<Lease>(json!({"kinds": ["send_mail"], "max": 1, "wait": 5, "lease": 30}))
            .reply::<Leased>(200, "The jobs; none if there were none"),
    );
    routes.add(
        Route::post("/v1/queues/{name}:progress", progress)
            .doc(FAMILY, "Record how far a job is")
            .param("name", "mail")
            .body::<Progress>(json!({"fence": "0193…", "progress": 0.5}))
            .reply::<Done>(200, "Recorded")
            .status(409, "The job is no longer this worker's"),
    );
    routes.add(
        Route::post("/v1/queues/{name}:extend", extend)
            .doc(FAMILY, "Keep the jobs of a lease")
            .param("name", "mail")
            .body::<Extend>(json!({"fence": "0193…", "lease": 30}))
            .reply::<Extended>(200, "The lease runs for this long from now")
            .status(409, "The lease was lost"),
    );
    routes.add(
        Route::post("/v1/queues/{name}:ack", ack)
            .doc(FAMILY, "Say that a job is done")
            .param("name", "mail")
            .body::<Ack>(json!({"fence": "0193…"}))
            .reply::<Done>(200, "Written")
            .status(409, "The job is no longer this worker's"),
    );
    routes.add(
        Route::post("/v1/queues/{name}:fail", fail)
            .doc(
                FAMILY,
                "Say that a job failed: it is tried again, or becomes a dead letter",
            )
            .param("name", "failing")
            .body::<Fail>(
                json!({"fence": "0193…", "error": "connection refused", "retry_after": 10}),
            )
            .reply::<Done>(200, "Written")
            .status(409, "The job is no longer this worker's"),
    );
}

/// One job, and what happens to all of them.
fn add_one_job(routes: &mut Routes) {
    routes.add(
        Route::get("/v1/queues/{name}/jobs/{id}", find)
            .doc(FAMILY, "Look a job up")
            .param("name", "mail")
            .param("id", "00000000000000000000000000000000")
            .reply::<Details>(200, "The job, its attempts, its log and its result")
            .status(404, "There is no such job, or it ended too long ago"),
    );
    routes.add(
        Route::get("/v1/queues/{name}/jobs/{id}:result", result)
            .waits()
            .doc(FAMILY, "Wait for the result of a job")
            .param("name", "mail")
            .param("id", "00000000000000000000000000000000")
            .query("wait", "Seconds to wait (default 0)", 1)
            .reply::<Ended>(200, "What became of it, or pending"),
    );
    routes.add(
        Route::post("/v1/queues/{name}/jobs/{id}:cancel", cancel)
            .by_hand("queue.cancel")
            .doc(FAMILY, "Cancel a job")
            .param("name", "mail")
            .param("id", "00000000000000000000000000000000")
            .reply::<CancelledReply>(200, "Cancelled, or its worker was told")
            .status(404, "There is no such job, or it is over"),
    );
    routes.add(
        Route::get("/v1/queues/{name}/events", events)
            .doc(
                FAMILY,
                "Follow what happens: server-sent events added, started, done, failed, dead …",
            )
            .param("name", "mail")
            .query("after", "The id of the last event that was seen", "")
            .status(200, "A stream of events"),
    );
    routes.add(
        Route::post("/v1/queues/{name}/jobs/{id}:run-now", run_now)
            .by_hand("queue.run-now")
            .doc(FAMILY, "Run a delayed job now")
            .param("name", "mail")
            .param("id", "00000000000000000000000000000000")
            .reply::<Done>(200, "Made ready")
            .status(409, "It is not delayed"),
    );
    routes.add(
        Route::delete("/v1/queues/{name}/jobs/{id}", delete)
            .by_hand("queue.delete")
            .doc(FAMILY, "Delete a job that waits")
            .param("name", "mail")
            .param("id", "00000000000000000000000000000000")
            .reply::<Done>(200, "Deleted")
            .status(409, "It runs, or is not there"),
    );
}

/// Operating a queue and its dead letters.
fn add_operating(routes: &mut Routes) {
    routes.add(
        Route::post("/v1/queues/{name}:pause", pause)
            .by_hand("queue.pause")
            .doc(FAMILY, "Hand out no more jobs")
            .param("name", "mail")
            .reply::<Done>(200, "Paused"),
    );
    routes.add(
        Route::post("/v1/queues/{name}:resume", resume)
            .by_hand("queue.resume")
            .doc(FAMILY, "Hand out jobs again")
            .param("name", "mail")
            .reply::<Done>(200, "Resumed"),
    );
    routes.add(
        Route::get("/v1/queues/{name}/dead", dead)
            .doc(FAMILY, "List dead letters")
            .param("name", "mail")
            .reply::<DeadLetters>(200, "Up to 100 of them, oldest first"),
    );
    routes.add(
        Route::post("/v1/queues/{name}/dead:replay", replay)
            .by_hand("queue.replay")
            .doc(FAMILY, "Enqueue dead letters again")
            .param("name", "mail")
            .body::<Letters>(json!({"error": "connection refused", "dry_run": true}))
            .reply::<Changed>(200, "How many"),
    );
    routes.add(
        Route::post("/v1/queues/{name}/dead:purge", purge)
            .by_hand("queue.purge")
            .doc(FAMILY, "Delete dead letters")
            .param("name", "mail")
            .body::<Letters>(json!({"error": "connection refused", "dry_run": true}))
            .reply::<Changed>(200, "How many"),
    );
}

/// A queue, and which of its jobs.
fn filtered(route: Route) -> Route {
    route
        .param("name", "mail")
        .query("state", STATES, "ready")
        .query(
            "search",
            "Only jobs whose payload contains this text",
            "ann",
        )
        .query("kind", "Only jobs of this kind", "send_mail")
        .query(
            "error",
            "Only dead letters whose error contains this text",
            "",
        )
}

/// A queue as this service uses it: with a history for the charts, and with results that can be asked for.
pub(crate) fn open_queue(store: &Store, namespace: &str, name: &str) -> redstart::Result<Queue> {
    Queue::builder(store, namespace, name)
        .keep_done(1000, KEPT)
        .keep_events(1000)
        .history(Duration::from_secs(86_400))
        .build()
}

pub(crate) fn queue(call: &Call) -> Result<Queue, Problem> {
    Ok(open_queue(
        &call.app.store,
        &call.namespace()?,
        call.param("name"),
    )?)
}

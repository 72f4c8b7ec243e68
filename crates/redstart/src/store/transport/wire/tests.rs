//! The wire against servers that are made for it.

use std::{future::Future as _, pin::Pin, task::Poll, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::store::transport::reply::Reader;

mod gathering;

const LONG: Duration = Duration::from_secs(60);

/// A connection, and the other end of it.
async fn pair() -> (Wire, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (ours, theirs) = tokio::join!(
        TcpStream::connect(listener.local_addr().unwrap()),
        listener.accept()
    );
    (Wire::new(Stream::Tcp(ours.unwrap())), theirs.unwrap().0)
}

async fn ask(wire: &Wire, what: &str) -> Outcome {
    ask_within(wire, what, LONG).await
}

async fn ask_within(wire: &Wire, what: &str, within: Duration) -> Outcome {
    let mut cmd = redis::cmd("ECHO");
    cmd.arg(what);
    wire.send(Request::one(&cmd, Instant::now() + within)).await
}

/// Answers each ECHO by its argument, the replies cut into pieces of the given size.
async fn echo(mut stream: TcpStream, piece: usize) {
    let (mut input, mut chunk) = (Vec::new(), vec![0; 4096]);
    let (mut reader, mut at) = (Reader::default(), 0);
    loop {
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(read) => input.extend_from_slice(&chunk[..read]),
        }
        let mut out = Vec::new();
        while let Ok(value) = reader.next(&input, &mut at).unwrap() {
            let Some([_, Value::BulkString(text)]) = value.as_sequence() else {
                panic!("an ECHO has one argument");
            };
            out.extend(format!("${}\r\n", text.len()).bytes());
            out.extend(text);
            out.extend(b"\r\n");
        }
        input.drain(..at);
        at = 0;
        for piece in out.chunks(piece) {
            stream.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_many_tasks_gets_its_own_reply() {
    for piece in [1, 7, 1 << 20] {
        let (wire, theirs) = pair().await;
        let server = tokio::spawn(echo(theirs, piece));
        let wire = Arc::new(wire);
        let tasks: Vec<_> = (0..64)
            .map(|task| {
                let wire = wire.clone();
                tokio::spawn(async move {
                    for turn in 0..50 {
                        let text = format!("{task}:{turn}").repeat(turn + 1);
                        // Some go away while they wait; the others' replies stay theirs.
                        if (task + turn) % 5 == 0 {
                            let gone = Duration::from_micros(turn as u64);
                            let _ = tokio::time::timeout(gone, ask(&wire, "gone")).await;
                        }
                        let reply = ask(&wire, &text).await.unwrap();
                        assert_eq!(reply, Value::BulkString(text.into_bytes()));
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        drop(wire);
        server.await.unwrap();
    }
}

#[tokio::test]
async fn a_long_request_and_a_long_reply_pass_while_others_wait() {
    let (wire, theirs) = pair().await;
    tokio::spawn(echo(theirs, 1 << 20));
    let long = "x".repeat(3 * MAX_WAITING);
    let (first, second, third) =
        tokio::join!(ask(&wire, &long), ask(&wire, &long), ask(&wire, "short"),);
    let long = Value::BulkString(long.into_bytes());
    assert_eq!(first.unwrap(), long);
    assert_eq!(second.unwrap(), long);
    assert_eq!(third.unwrap(), Value::BulkString(b"short".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn each_request_ends_at_its_own_deadline_and_late_replies_go_nowhere() {
    let (wire, mut theirs) = pair().await;
    let begun = Instant::now();
    let seconds = Duration::from_secs;
    let (late, soon, later, fourth, ()) = tokio::join!(
        ask_within(&wire, "a", seconds(5)),
        ask_within(&wire, "b", seconds(2)),
        async {
            let outcome = ask_within(&wire, "c", seconds(3)).await;
            (outcome, begun.elapsed())
        },
        ask(&wire, "d"),
        async {
            tokio::time::sleep(seconds(5) + seconds(1) / 2).await;
            // The replies of all three, and then that of the fourth, which is still waited for.
            theirs.read_exact(&mut [0; 4 * 21]).await.unwrap();
            theirs.write_all(b"+a\r\n+b\r\n+c\r\n+d\r\n").await.unwrap();
        },
    );
    for outcome in [late, soon, later.0] {
        assert!(matches!(outcome, Err(Failure::TimedOut)), "{outcome:?}");
    }
    assert!(later.1 >= seconds(3) && later.1 < seconds(4));
    assert_eq!(fourth.unwrap(), Value::SimpleString("d".into()));
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_reply_at_its_deadline_is_the_last_also_if_its_caller_has_gone() {
    let (wire, _theirs) = pair().await;
    let seconds = Duration::from_secs;
    let gone = tokio::time::timeout(seconds(1), ask_within(&wire, "a", seconds(2)));
    assert!(gone.await.is_err());
    let early = tokio::time::timeout(seconds(1) / 2, ask_within(&wire, "b", seconds(60)));
    assert!(
        early.await.is_err(),
        "the deadline of the first is not over"
    );
    tokio::time::sleep(seconds(1)).await;
    let next = ask_within(&wire, "c", seconds(2)).await;
    assert!(matches!(next, Err(Failure::NotSent(_))), "{next:?}");
}

#[tokio::test]
async fn deadlines_are_kept_while_replies_flow() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (ours, theirs) = tokio::join!(
        TcpStream::connect(listener.local_addr().unwrap()),
        listener.accept()
    );
    let mut theirs = theirs.unwrap().0;
    let (wire, mut task) = Wire::with_task(Stream::Tcp(ours.unwrap()));
    let ping = redis::cmd("PING");
    let now = Instant::now();
    let ask = |deadline| wire.ask(Request::one(&ping, deadline)).unwrap();
    let answered = [ask(now + LONG), ask(now + LONG)];
    let mut late = ask(now);
    theirs.write_all(b"+a\r\n+b\r\n").await.unwrap();
    std::future::poll_fn(|cx| wire.shared.stream.poll_read_ready(cx))
        .await
        .unwrap();
    // One turn of the task, which hands out two replies.
    let turn = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut task).poll(cx)));
    assert!(turn.await.is_pending());
    for reply in answered {
        assert!(reply.await.unwrap().is_ok());
    }
    assert!(matches!(late.try_recv(), Ok(Err(Failure::TimedOut))));
}

#[tokio::test]
async fn what_was_sent_is_lost_with_the_connection_and_what_was_not_is_known_to_be_not() {
    let (wire, theirs) = pair().await;
    let wire = Arc::new(wire);
    let ask = |text: String| {
        let wire = wire.clone();
        tokio::spawn(async move { ask(&wire, &text).await })
    };
    let sent = ask("sent".into());
    // More than the system takes while nobody reads, so that the last one stays here.
    let partly = ask("x".repeat(64 * 1024 * 1024));
    tokio::task::yield_now().await;
    let unsent = ask("unsent".into());
    tokio::task::yield_now().await;
    drop(theirs);
    assert!(matches!(sent.await.unwrap(), Err(Failure::Lost(_))));
    assert!(matches!(partly.await.unwrap(), Err(Failure::Lost(_))));
    assert!(matches!(unsent.await.unwrap(), Err(Failure::NotSent(_))));
    let after = ask("after".into()).await.unwrap();
    assert!(matches!(after, Err(Failure::NotSent(_))));
}

#[tokio::test]
async fn a_reply_that_nobody_asked_for_or_that_is_none_ends_the_connection() {
    for rubbish in ["+surprise\r\n+two\r\n", "garbage\r\n", "$-7\r\n"] {
        let (wire, mut theirs) = pair().await;
        theirs.write_all(rubbish.as_bytes()).await.unwrap();
        let mut outcome = ask(&wire, "x").await;
        if outcome.is_ok() {
            outcome = ask(&wire, "y").await;
        }
        let ended = matches!(outcome, Err(Failure::Lost(_) | Failure::NotSent(_)));
        assert!(ended, "{rubbish:?}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_reply_is_handed_out_although_what_comes_behind_it_is_none() {
    let (wire, mut theirs) = pair().await;
    let (first, second, ()) = tokio::join!(ask(&wire, "x"), ask(&wire, "y"), async {
        theirs.read_exact(&mut [0; 2 * 21]).await.unwrap();
        theirs.write_all(b"+x\r\ngarbage\r\n").await.unwrap();
    });
    assert_eq!(first.unwrap(), Value::SimpleString("x".into()));
    assert!(matches!(second, Err(Failure::Lost(_))), "{second:?}");
}

#[tokio::test]
async fn a_dropped_handle_closes_the_connection_once_nobody_waits() {
    let (wire, mut theirs) = pair().await;
    let mut buffer = [0; 64];
    let waiting = {
        let cmd = redis::cmd("PING");
        let deadline = Instant::now() + LONG;
        wire.ask(Request::one(&cmd, deadline)).unwrap()
    };
    drop(wire);
    assert_ne!(theirs.read(&mut buffer).await.unwrap(), 0, "it was sent");
    theirs.write_all(b"+PONG\r\n").await.unwrap();
    let reply = waiting.await.unwrap().unwrap();
    assert_eq!(reply, Value::SimpleString("PONG".into()));
    assert_eq!(theirs.read(&mut buffer).await.unwrap(), 0, "it is closed");
}

#[tokio::test]
async fn a_transaction_with_a_refused_command_is_answered_by_the_refusal_that_helps() {
    let (wire, mut theirs) = pair().await;
    let mut pipeline = redis::pipe();
    pipeline.atomic().cmd("SET").arg("a").arg(1);
    pipeline.cmd("SET").arg("b").arg(1);
    let deadline = Instant::now() + LONG;
    let (outcome, ()) = tokio::join!(
        wire.send(Request::new(Body::all(&pipeline), deadline)),
        async {
            theirs.read_exact(&mut [0; 15]).await.unwrap();
            let replies = b"+OK\r\n-ERR no\r\n-MOVED 1 127.0.0.1:1\r\n-EXECABORT x\r\n";
            theirs.write_all(replies).await.unwrap();
        }
    );
    let outcome = outcome.unwrap();
    let Value::ServerError(error) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(error.code(), "MOVED");
    let (next, ()) = tokio::join!(ask(&wire, "next"), async {
        theirs.write_all(b"+next\r\n").await.unwrap();
    });
    assert_eq!(next.unwrap(), Value::SimpleString("next".into()));
}

#[tokio::test]
async fn a_transaction_whose_exec_is_refused_is_answered_by_the_refusal() {
    let (wire, mut theirs) = pair().await;
    let mut pipeline = redis::pipe();
    pipeline.atomic().cmd("SET").arg("a").arg(1);
    let deadline = Instant::now() + LONG;
    let (outcome, ()) = tokio::join!(
        wire.send(Request::new(Body::all(&pipeline), deadline)),
        async {
            theirs.read_exact(&mut [0; 15]).await.unwrap();
            let replies = b"+OK\r\n+QUEUED\r\n-MOVED 1 127.0.0.1:1\r\n";
            theirs.write_all(replies).await.unwrap();
        }
    );
    let outcome = outcome.unwrap();
    assert!(
        matches!(&outcome, Value::ServerError(error) if error.code() == "MOVED"),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn an_empty_pipeline_takes_nobodys_reply() {
    let (wire, theirs) = pair().await;
    tokio::spawn(echo(theirs, 1 << 20));
    let (empty, deadline) = (redis::pipe(), Instant::now() + LONG);
    let nothing = wire
        .send(Request::new(Body::all(&empty), deadline))
        .await
        .unwrap();
    assert_eq!(nothing, Value::Array(Vec::new()));
    let reply = ask(&wire, "mine").await.unwrap();
    assert_eq!(reply, Value::BulkString(b"mine".to_vec()));
}

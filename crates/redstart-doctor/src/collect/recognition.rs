//! Which libraries keep what, by the contents of their keys.
//!
//! `redstart-adopt` knows what libraries write and what to ask; it asks through the doctor's own connections. So its
//! commands are counted, go to replicas where there are any, leave in small batches, and do not touch the keys'
//! idle times.

use std::{collections::HashSet, time::Duration};

use redis::{Arg, Cmd, Value};
use redstart_adopt::{Answer as Reply, Budget, Recognition, Source, recognise_from};

use super::{
    Blinds,
    keys::{BATCH, Names},
    stream,
};
use crate::{
    node::{Node, Slots},
    wire::{Answer, Words, words},
};

/// Keys that are looked at.
const LOOKS: usize = 1500;

/// What the questions of recognition say besides.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) streams: stream::Infos,
    /// Digests of scripts that a master has.
    pub(crate) scripts: Vec<&'static str>,
}

/// Recognises libraries among the names that were found, in this time. What was learnt besides goes to `asked`.
pub(crate) async fn recognise(
    nodes: &mut [Node],
    readers: &[usize],
    slots: &Slots,
    found: &Names,
    time: Duration,
    asked: &mut Asked,
    blinds: &mut Blinds,
) -> Option<Recognition> {
    if readers.is_empty() {
        return None;
    }
    let mut asker = Asker {
        nodes,
        readers,
        slots,
        names: found.some(),
        hints: found.signs.hints(),
        streams: HashSet::new(),
        asked,
        refusal: None,
    };
    let budget = Budget::default().keys(asker.names.len() + 1);
    let budget = budget.looks(LOOKS).time(time);
    let recognition = recognise_from(&mut asker, &budget).await;
    if let Some(why) = asker.refusal {
        blinds.note("libraries by their contents", why);
    }
    match recognition {
        Ok(recognition) => {
            if !recognition.complete {
                blinds.note(
                    "libraries",
                    format!(
                        "not all keys that may be of one were looked at: {} s or {LOOKS} keys were not enough",
                        time.as_secs()
                    ),
                );
            }
            Some(recognition)
        }
        Err(error) => {
            blinds.note("libraries by their contents", error);
            None
        }
    }
}

struct Asker<'a> {
    nodes: &'a mut [Node],
    /// One node of each shard, by which keys are read.
    readers: &'a [usize],
    slots: &'a Slots,
    names: Vec<Vec<u8>>,
    hints: Vec<Vec<u8>>,
    /// Keys that are streams. MEMORY USAGE would walk all consumers of all their groups.
    streams: HashSet<Vec<u8>>,
    asked: &'a mut Asked,
    /// Why a command was not answered.
    refusal: Option<String>,
}

impl Asker<'_> {
    /// Where a command's key is read.
    fn place(&self, words: &Words) -> usize {
        let at = match words.first().map(Vec::as_slice) {
            Some(b"MEMORY" | b"OBJECT") => 2,
            _ => 1,
        };
        let key = words.get(at).map(Vec::as_slice).unwrap_or_default();
        let first = self.readers.first().copied().unwrap_or(0);
        self.slots.shard(key).map_or(first, |shard| {
            let of_shard = |index: &&usize| self.nodes[**index].shard == shard;
            self.readers.iter().find(of_shard).copied().unwrap_or(first)
        })
    }

    /// What is sent in place of a command.
    fn instead(&self, words: &Words) -> Words {
        match words.as_slice() {
            [memory, _, key, ..] if memory == b"MEMORY" && self.streams.contains(key) => {
                words!["XINFO", "STREAM", key]
            }
            _ => words.clone(),
        }
    }

    /// The answer to what was asked, from the reply to what was sent.
    fn take(&mut self, asked: &Words, value: Value) -> Option<Value> {
        match asked.as_slice() {
            [kind, key] if kind == b"TYPE" => {
                if matches!(&value, Value::SimpleString(kind) if kind == "stream") {
                    self.streams.insert(key.clone());
                }
                Some(value)
            }
            [memory, _, key, ..] if memory == b"MEMORY" && self.streams.contains(key) => {
                let info = stream::Info::of(&value);
                self.asked.streams.insert(key.clone(), info);
                let bytes = info.estimate()?;
                i64::try_from(bytes).ok().map(Value::Int)
            }
            _ => Some(value),
        }
    }

    async fn all(&mut self, commands: Vec<Cmd>) -> Vec<Option<Value>> {
        let mut replies: Vec<Option<Value>> = commands.iter().map(|_| None).collect();
        let asked: Vec<Words> = commands.iter().map(as_words).collect();
        let commands: Vec<Words> = asked.iter().map(|words| self.instead(words)).collect();
        let places: Vec<usize> = commands.iter().map(|words| self.place(words)).collect();
        for &node in self.readers {
            let own: Vec<usize> = (0..commands.len())
                .filter(|at| places[*at] == node)
                .collect();
            for chunk in own.chunks(BATCH) {
                let batch = chunk.iter().map(|at| commands[*at].clone()).collect();
                match self.nodes[node].wire.batch(batch).await {
                    Ok(answers) => {
                        for (at, answer) in chunk.iter().zip(answers) {
                            match answer {
                                Ok(value) => replies[*at] = self.take(&asked[*at], value),
                                Err(trouble) => self.refused(&trouble.to_string()),
                            }
                        }
                    }
                    Err(trouble) => {
                        self.refused(&trouble.to_string());
                        break;
                    }
                }
            }
        }
        replies
    }

    /// A key of another type meanwhile is no loss; a command that may not be used is.
    fn refused(&mut self, why: &str) {
        if !why.contains("WRONGTYPE") && !why.contains("no such key") {
            self.refusal.get_or_insert_with(|| why.to_owned());
        }
    }
}

fn as_words(command: &Cmd) -> Words {
    command
        .args_iter()
        .map(|arg| match arg {
            Arg::Simple(bytes) => bytes.to_vec(),
            _ => b"0".to_vec(),
        })
        .collect()
}

impl Source for Asker<'_> {
    fn now(&mut self) -> Reply<'_, Duration> {
        Box::pin(async {
            let now = crate::doctor::now(self.nodes).await;
            Ok(Duration::from_millis(now))
        })
    }

    fn names<'a>(&'a mut self, _matching: &'a str, at_most: usize) -> Reply<'a, Vec<Vec<u8>>> {
        let mut names = std::mem::take(&mut self.names);
        names.truncate(at_most);
        Box::pin(async { Ok(names) })
    }

    /// Scripts are cached where they are run: on masters.
    fn scripts<'a>(&'a mut self, digests: &'a [&'static str]) -> Reply<'a, Vec<bool>> {
        Box::pin(async move {
            let mut known = vec![false; digests.len()];
            for node in self.nodes.iter_mut().filter(|node| !node.replica) {
                let mut question = words!["SCRIPT", "EXISTS"];
                question.extend(digests.iter().map(|digest| digest.as_bytes().to_vec()));
                let answer: Answer<Vec<u64>> = node.wire.get(question).await;
                for (known, has) in known.iter_mut().zip(answer.unwrap_or_default()) {
                    *known |= has > 0;
                }
            }
            let there = digests.iter().zip(&known).filter(|(_, has)| **has);
            self.asked.scripts.extend(there.map(|(digest, _)| *digest));
            Ok(known)
        })
    }

    fn ask(&mut self, commands: Vec<Cmd>) -> Reply<'_, Vec<Option<Value>>> {
        Box::pin(async move { Ok(self.all(commands).await) })
    }

    fn hints(&self) -> Vec<Vec<u8>> {
        self.hints.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;

    #[tokio::test]
    async fn recognition_that_had_no_time_is_noted() -> redstart::Result<()> {
        let store = redstart::Store::connect("memory://recognition").await?;
        for (key, field, value) in [
            ("bull:mail:meta", "version", "bullmq:5.81.5"),
            ("bull:mail:1", "name", "letter"),
        ] {
            let mut set = redis::cmd("HSET");
            store.query::<u64>(set.arg(&[key, field, value])).await?;
        }
        let mut nodes = [Node {
            address: "memory".to_owned(),
            at: None,
            replica: false,
            shard: 0,
            wire: Wire::embedded(store),
        }];
        for (seconds, noted) in [(600, false), (0, true)] {
            let (mut found, mut blinds) = (Names::default(), Blinds::default());
            for name in ["bull:mail:meta", "bull:mail:1"] {
                found.see(0, name.into(), &mut blinds);
            }
            let (slots, mut asked) = (Slots::default(), Asked::default());
            let time = Duration::from_secs(seconds);
            let known = recognise(
                &mut nodes,
                &[0],
                &slots,
                &found,
                time,
                &mut asked,
                &mut blinds,
            );
            assert!(known.await.is_some());
            let told = blinds.finish().iter().any(|note| note.what == "libraries");
            assert_eq!(told, noted, "{seconds} s");
        }
        Ok(())
    }
}

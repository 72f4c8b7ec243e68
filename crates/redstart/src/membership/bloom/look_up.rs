//! Looks elements up by plain reads: a script would cost the server twice as much.
//!
//! The bits are read before the header of the same key, which a server does in this order. Bits are never cleared while a
//! header stays as it is, so a header that is right afterwards says that the bits were the filter's.

use std::sync::atomic::Ordering;

use redis::{Pipeline, Value};

use super::{
    BloomMode,
    config::{CONFIG_BYTES, HEADER_BYTES, MAX_LAYERS},
    generation::{Generation, Named, ROUND_BITS, Reading},
};
use crate::{
    error::{Error, Result},
    key::Entity,
    store::Store,
};

/// Bits of one command; other clients are served between two commands.
const COMMAND_BITS: usize = 2_000;

/// What the header of a partition says about the bits that were read before it.
enum Header {
    Right,
    /// The partition has this many layers.
    Layers(u8),
    /// This generation took over.
    Moved(u32),
    Gone,
}

impl Header {
    fn read(header: &[u8], config: [u8; CONFIG_BYTES]) -> Self {
        let (Some(found), Some([state, layers])) = (
            header.get(..CONFIG_BYTES),
            header.get(CONFIG_BYTES..CONFIG_BYTES + 2),
        ) else {
            return Self::Gone;
        };
        let Some(next) = header.last_chunk::<4>().copied() else {
            return Self::Gone;
        };
        if header.len() as u64 != HEADER_BYTES || found != config {
            return Self::Gone;
        }
        match (state, layers) {
            (b'm', _) => Self::Moved(u32::from_le_bytes(next)),
            (_, 1) => Self::Right,
            (_, layers) => Self::Layers((*layers).clamp(1, MAX_LAYERS)),
        }
    }
}

impl Generation {
    /// Answers for the elements in partitions of one layer. What it leaves in `open` is for the script, which looks into a
    /// layer only for the elements that no older one has.
    pub(super) async fn look_up(
        &self,
        store: &Store,
        root: &Entity,
        elements: &[&[u8]],
        open: &mut Vec<(usize, Vec<usize>)>,
        visit: &mut Reading,
    ) -> Result<()> {
        if self.config.mode == BloomMode::Native {
            return Ok(());
        }
        let has_one_layer = |partition: usize| {
            let layers = &self.partitions[partition].layers;
            layers.load(Ordering::Relaxed) <= 1
        };
        let (mut plain, layered): (Vec<_>, Vec<_>) = std::mem::take(open)
            .into_iter()
            .partition(|(partition, _)| has_one_layer(*partition));
        *open = layered;
        let (shape, seed) = (self.config.layer(0), self.config.layer_seed(0));
        let hashes = shape.hashes as usize;
        let at_once = (COMMAND_BITS / hashes).max(1);
        while !plain.is_empty() {
            let (mut pipeline, mut sent, mut bits) = (Pipeline::new(), Vec::new(), 0);
            while bits < ROUND_BITS
                && let Some((partition, chunk)) = plain.pop()
            {
                bits += chunk.len() * hashes;
                let key = self.partitions[partition].entity.part("0");
                for part in chunk.chunks(at_once) {
                    let read = pipeline.cmd("BITFIELD_RO").arg(&key);
                    for index in part {
                        for offset in shape.offsets(elements[*index], seed) {
                            read.arg("GET").arg("u1").arg(offset);
                        }
                    }
                }
                let header = pipeline.cmd("GETRANGE").arg(&key);
                header.arg(0).arg(HEADER_BYTES - 1);
                sent.push((partition, chunk));
            }
            // Last, because a server runs a pipeline in order.
            let names = pipeline.cmd("HMGET").arg(root.part("root"));
            names.arg("current").arg("next");
            let mut replies = store.pipeline::<Vec<Value>>(&pipeline).await?.into_iter();
            let mut next = || replies.next().ok_or_else(unexpected);
            for (partition, chunk) in sent {
                let mut known = Vec::with_capacity(chunk.len());
                for part in chunk.chunks(at_once) {
                    let Value::Array(bits) = next()? else {
                        return Err(unexpected());
                    };
                    if bits.len() != part.len() * hashes {
                        return Err(unexpected());
                    }
                    let are_set = |bits: &[Value]| bits.iter().all(|bit| *bit == Value::Int(1));
                    known.extend(bits.chunks_exact(hashes).map(are_set));
                }
                let header: Vec<u8> = redis::from_redis_value(next()?)?;
                match Header::read(&header, self.config.header(partition, 0)) {
                    Header::Right => visit.answers.extend(chunk.into_iter().zip(known)),
                    Header::Layers(layers) => {
                        let known = &self.partitions[partition].layers;
                        known.store(layers, Ordering::Relaxed);
                        open.push((partition, chunk));
                    }
                    Header::Moved(number) => {
                        let moved = chunk.into_iter().map(|index| (number, index));
                        visit.moved.extend(moved);
                    }
                    Header::Gone => visit.gone.extend(chunk),
                }
            }
            let (current, next): (Option<String>, Option<String>) =
                redis::from_redis_value(next()?)?;
            let (current, next) = (current.unwrap_or_default(), next.unwrap_or_default());
            visit.named = visit.named.min(Named::by(&current, &next, self));
        }
        Ok(())
    }
}

fn unexpected() -> Error {
    Error::codec("the reply does not match the requested elements")
}

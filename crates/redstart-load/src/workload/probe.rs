//! One GET: what the store itself can do, beside which the patterns are read.

use redstart::{Result, key::Keys, redis};

use super::{Bed, Claims, Op, Workload};

super::patterns! { "store":
    "get", "key", 0.0, "every read returns the value that was stored", Get::open;
}

struct Get {
    store: redstart::Store,
    requests: Vec<redis::Cmd>,
    size: usize,
    claims: Claims,
}

impl Get {
    async fn open(bed: &Bed) -> Result<Self> {
        let keys = Keys::new(&bed.namespace, "get")?;
        let mut requests = Vec::new();
        for n in 0..bed.entities(100_000) {
            let entity = keys.entity(&format!("e{n}"))?;
            let mut set = redis::cmd("SET");
            set.arg(entity.key()).arg(bed.body()).arg("EX").arg(86_400);
            bed.gate.pass(bed.payload).await;
            bed.store.query::<()>(&set).await?;
            let mut get = redis::cmd("GET");
            get.arg(entity.key());
            requests.push(get);
        }
        Ok(Self {
            store: bed.store.clone(),
            requests,
            size: bed.payload,
            claims: Claims::default(),
        })
    }
}

impl Workload for Get {
    async fn operate(&self, op: Op) -> Result<()> {
        let request = &self.requests[op.index(self.requests.len())];
        let value: Option<Vec<u8>> = self.store.query(request).await?;
        let right = value.is_some_and(|value| value.len() == self.size);
        self.claims
            .hold(right, || "a stored value was not read".to_owned());
        Ok(())
    }

    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn entities(&self) -> u64 {
        self.requests.len() as u64
    }
}

//! Arrays of fixed-size records.

use std::time::Duration;

use redstart::{
    Error, Result, Store,
    storage::{FixedArray, Record},
};
use redstart_testkit::{Backend, matrix};

#[derive(Clone, Debug, PartialEq)]
struct Seat {
    buyer: u32,
    price: u16,
}

impl Record for Seat {
    const NAME: &'static str = "seat";
    const SIZE: usize = 6;

    fn to_bytes(&self, buffer: &mut [u8]) {
        buffer[..4].copy_from_slice(&self.buyer.to_be_bytes());
        buffer[4..].copy_from_slice(&self.price.to_be_bytes());
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Ok(Seat {
            buyer: u32::from_bytes(&bytes[..4])?,
            price: u16::from_bytes(&bytes[4..])?,
        })
    }
}

matrix! {
    async fn concurrent_writers_of_different_records_do_not_disturb_each_other(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let seats = FixedArray::<Seat>::new(&store, backend.namespace(), "stalls", 200)?;
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..8u32 {
            let seats = seats.clone();
            tasks.spawn(async move {
                for seat in (writer..200).step_by(8) {
                    seats.set(seat, &Seat { buyer: seat * 1000, price: seat as u16 }).await?;
                }
                Ok::<(), Error>(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        assert_eq!(seats.len().await?, 200);
        let all = seats.range(0..200).await?;
        for (seat, record) in (0..).zip(&all) {
            assert_eq!(*record, Seat { buyer: seat * 1000, price: seat as u16 });
        }
        assert_eq!(seats.range(10..13).await?, all[10..13]);
        Ok(())
    }

    async fn gaps_are_zeros_and_bounds_are_checked_before_the_call(backend: &Backend) -> anyhow::Result<()> {
        let store = Store::connect(backend.url()).await?;
        let array = FixedArray::<u64>::builder(&store, backend.namespace(), "a", 10).ttl(Duration::from_secs(60)).build()?;
        assert!(array.is_empty().await?);
        assert_eq!(array.get(0).await?, None);
        array.set(4, &u64::MAX).await?;
        assert_eq!(array.range(0..10).await?, [0, 0, 0, 0, u64::MAX]);
        assert_eq!(array.get(2).await?, Some(0));
        assert_eq!(array.get(5).await?, None);
        assert_eq!(array.range(3..3).await?, [0u64; 0]);
        for index in [10, 11, u32::MAX] {
            assert!(array.set(index, &1).await.unwrap_err().is_config());
            assert!(array.get(index).await.unwrap_err().is_config());
        }
        assert!(array.range(5..11).await.unwrap_err().is_config());
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        let backwards = array.range(6..5).await;
        assert!(backwards.unwrap_err().is_config());
        assert_eq!(array.len().await?, 5);
        for name in store.scan(&format!("{}:*", backend.namespace())).await? {
            assert!(store.query::<i64>(redis::cmd("PTTL").arg(name)).await? > 0);
        }
        assert!(FixedArray::<u64>::new(&store, "a", "b", 0).unwrap_err().is_config());
        assert!(FixedArray::<u64>::new(&store, "a", "", 1).unwrap_err().is_config());
        assert!(FixedArray::<u64>::new(&store, "a", "b", u32::MAX).unwrap_err().is_config());
        assert!(FixedArray::<[u8; 0]>::new(&store, "a", "b", 1).unwrap_err().is_config());
        Ok(())
    }
}

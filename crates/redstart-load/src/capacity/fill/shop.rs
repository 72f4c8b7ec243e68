//! What a shop keeps beside its caches: stock, and where its visitors were.

use redstart::{
    commerce::{Request, Stock},
    sessions::Trail,
};

use super::{Fill, Filling, LONG, MANY, user};

/// A table with one entry per kind.
pub(super) fn fillings() -> Vec<Filling> {
    vec![
        filling!(
            "stock",
            "reservation",
            None,
            &[0],
            MANY,
            |store, ns, value| {
                let stock = Stock::builder(&store, &ns, "sale").build()?;
                let _ = stock.prewarm("item", 1 << 30, LONG).await?;
                stock
            },
            |it, n| {
                let _ = it
                    .reserve(&Request::new("item", &user(n), &format!("r{n}")), 1, LONG)
                    .await?;
            }
        ),
        filling!(
            "trail",
            "visitor with 5 pages",
            None,
            &[0],
            MANY,
            |store, ns, value| Trail::builder(&store, &ns, "pages")
                .pages(5)
                .gap(LONG)
                .build()?,
            |it, n| for page in 0..5 {
                it.visit(&user(n), &format!("/product/{page}")).await?;
            }
        ),
    ]
}

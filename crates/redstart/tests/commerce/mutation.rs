//! The tests notice when a check is taken out.

use redstart_testkit::child::{must_notice, without};

async fn without_check(check: &str, test: &str) -> anyhow::Result<()> {
    let all = redstart::script::all();
    let script = all
        .into_iter()
        .find(|script| script.name() == "stock.reserve");
    let source = script.expect("a script of this name").source();
    must_notice(test, "stock.reserve", &without(source, check, "")).await
}

#[tokio::test]
async fn a_buyer_above_the_cap_is_noticed() -> anyhow::Result<()> {
    let cap = "if capped then return { 'cap', math.max(0, cap - has) } end";
    without_check(cap, "stock::a_reservation_is_settled_once::embedded").await
}

#[tokio::test]
async fn a_unit_that_is_not_there_is_noticed() -> anyhow::Result<()> {
    let free = "if free < qty then return { 'soldout', free } end";
    without_check(
        free,
        "stock::buyers_at_once_never_get_more_than_there_is::embedded",
    )
    .await
}

#[tokio::test]
async fn a_reservation_without_its_order_is_noticed() -> anyhow::Result<()> {
    let order = "redis.call('XADD', KEYS[5], '*', 'sku', ARGV[6], 'user', ARGV[2], 'request', ARGV[7], 'qty', ARGV[3])";
    without_check(order, "stock::a_reservation_is_settled_once::embedded").await
}

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
    let order = "redis.call('XADD', KEYS[6], '*', 'sku', ARGV[6], 'user', ARGV[2], 'request', ARGV[7], 'qty', ARGV[3])";
    without_check(order, "stock::a_reservation_is_settled_once::embedded").await
}

#[tokio::test]
async fn an_expiry_without_its_entry_is_noticed() -> anyhow::Result<()> {
    let all = redstart::script::all();
    let mut named = all
        .into_iter()
        .filter(|script| script.name() == "stock.settle");
    let source = named.next().expect("a script of this name").source();
    let lua = without(
        source,
        "  expire(ARGV[1], found)",
        "  leave(ARGV[1], found, 'x'); found.state = 'x'",
    );
    let test = "stock::each_reservation_that_expires_has_one_entry::embedded";
    must_notice(test, "stock.settle", &lua).await
}

#[tokio::test]
async fn a_loan_that_another_sale_accepts_is_noticed() -> anyhow::Result<()> {
    let all = redstart::script::all();
    let mut named = all
        .into_iter()
        .filter(|script| script.name() == "stock.receive");
    let source = named.next().expect("a script of this name").source();
    let lua = without(source, " or (sale[2] or '') ~= ARGV[3] then", " then");
    let test = "stock::a_loan_of_one_sale_is_not_accepted_by_the_next";
    must_notice(test, "stock.receive", &lua).await
}

#[tokio::test]
async fn a_loan_that_is_refused_without_a_record_is_noticed() -> anyhow::Result<()> {
    let all = redstart::script::all();
    let mut named = all
        .into_iter()
        .filter(|script| script.name() == "stock.receive");
    let source = named.next().expect("a script of this name").source();
    let lua = without(source, "then qty = 0 end", "then return 0 end");
    let test = "stock::a_loan_that_the_sale_before_refused_is_not_accepted_later::embedded";
    must_notice(test, "stock.receive", &lua).await
}

//! Postgres runs in its own folder, regardless of which user runs the tests.

use anyhow::Result;
use redstart_testkit::Postgres;

#[tokio::test]
async fn postgres_answers_and_keeps_what_was_committed_before_a_kill() -> Result<()> {
    let postgres = Postgres::start().await?;
    assert!(postgres.url().starts_with("postgres://postgres@127.0.0.1:"));
    postgres.sql("create table t (n int primary key); insert into t values (42), (43)")?;
    assert_eq!(postgres.sql("select n from t order by n")?, "42\n43");
    assert!(postgres.sql("select nonsense").is_err());
    postgres.kill9();
    assert!(postgres.sql("select 1").is_err());
    postgres.restart().await?;
    assert_eq!(postgres.sql("select count(*) from t")?, "2");
    Ok(())
}

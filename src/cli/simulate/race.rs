//! 50 requests at once against a limit of 10.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tokio::sync::Barrier;

use super::Stop;
use super::stage::{Stage, entity, five_kinds};
use crate::decide::Verdict;
use crate::store::valkey::Settings;

const CLIENTS: usize = 50;
const LIMIT: u64 = 10;

pub(super) async fn run(settings: &Settings) -> Result<(), Stop> {
    let stage = Arc::new(Stage::real_time(settings).await?);
    let connection = settings.connect().await?;
    let key = format!("{}:naive", stage.prefix);
    let naive = read_then_increment(&connection, &key).await?;
    let _: () = redis::cmd("DEL")
        .arg(&key)
        .query_async(&mut connection.clone())
        .await?;
    println!("{CLIENTS} requests at once, limit {LIMIT}:");
    println!("  read, compare, then increment: {naive} of {CLIENTS} allowed");
    for policy in five_kinds(LIMIT, 3_600_000)? {
        let policy = Arc::new(policy);
        let requests: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (stage, policy) = (Arc::clone(&stage), Arc::clone(&policy));
                tokio::spawn(async move { stage.decide(&policy, entity("race"), 0, 1).await })
            })
            .collect();
        let mut allowed = 0;
        for request in requests {
            let decision = request
                .await
                .map_err(|error| Stop::Failed(error.to_string()))??;
            allowed += usize::from(decision.verdict == Verdict::Allow);
        }
        println!(
            "  tollgate, {}: {allowed} of {CLIENTS} allowed",
            policy.name
        );
    }
    Ok(())
}

/// What a client does that has no script: all of them read before the first of them writes.
async fn read_then_increment(connection: &MultiplexedConnection, key: &str) -> Result<usize, Stop> {
    let all_have_read = Arc::new(Barrier::new(CLIENTS));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut connection = connection.clone();
            let key = key.to_owned();
            let all_have_read = Arc::clone(&all_have_read);
            tokio::spawn(async move {
                let used: Option<u64> = redis::cmd("GET")
                    .arg(&key)
                    .query_async(&mut connection)
                    .await?;
                all_have_read.wait().await;
                if used.unwrap_or(0) >= LIMIT {
                    return Ok(false);
                }
                let _: u64 = redis::cmd("INCR")
                    .arg(&key)
                    .query_async(&mut connection)
                    .await?;
                redis::RedisResult::Ok(true)
            })
        })
        .collect();
    let mut allowed = 0;
    for client in clients {
        let passed = client
            .await
            .map_err(|error| Stop::Failed(error.to_string()))??;
        allowed += usize::from(passed);
    }
    Ok(allowed)
}

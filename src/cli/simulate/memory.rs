//! Bytes per key in Valkey after 1,000 requests at 1,000 per hour, beside what plain scripts keep.

use redis::aio::MultiplexedConnection;

use super::Stop;
use super::stage::{Stage, StoreChoice, entity, five_kinds};
use crate::store::valkey::Settings;

const REQUESTS: u64 = 1_000;
const WINDOW_MS: u64 = 3_600_000;

/// When the requests begin: at an edge of the window.
const BEGIN_MS: u64 = 1_000_000_800_000;

/// What a plain script keeps: a counter per window, a member per request, or a hash of level and stamp.
#[derive(Clone, Copy)]
enum Plain {
    Counter,
    SortedSet,
    Hash(&'static str),
}

pub(super) async fn run(settings: &Settings) -> Result<(), Stop> {
    let stage = Stage::virtual_time(&StoreChoice::Valkey(settings.clone())).await?;
    let mut connection = settings.connect().await?;
    let plain = [
        Plain::Counter,
        Plain::SortedSet,
        Plain::Counter,
        Plain::Hash("tokens"),
        Plain::Hash("level"),
    ];
    println!("Bytes per key after {REQUESTS} requests at {REQUESTS} per hour:\n");
    println!("| kind            | plain script | tollgate | ratio |");
    println!("| ---             | ---          | ---      | ---   |");
    for (policy, plain) in five_kinds(REQUESTS, WINDOW_MS)?.iter().zip(plain) {
        for number in 0..REQUESTS {
            stage
                .decide(policy, entity("client"), BEGIN_MS + number, 1)
                .await?;
        }
        let ours = stage.key(policy, entity("client"));
        // A key of the same length, since the key is part of what is measured.
        let theirs = "p".repeat(ours.len());
        fill(&mut connection, plain, &theirs).await?;
        let (plain_bytes, bytes) = (
            bytes_of(&mut connection, &theirs).await?,
            bytes_of(&mut connection, &ours).await?,
        );
        let _: () = redis::cmd("DEL")
            .arg(&theirs)
            .query_async(&mut connection)
            .await?;
        let hundredths = bytes.saturating_mul(100) / plain_bytes.max(1);
        println!(
            "| {:<15} | {plain_bytes:>12} | {bytes:>8} | {:>2}.{:02} |",
            policy.name,
            hundredths / 100,
            hundredths % 100
        );
    }
    stage.clean_up().await
}

/// Keeps what a plain script would after the same requests.
async fn fill(
    connection: &mut MultiplexedConnection,
    plain: Plain,
    key: &str,
) -> redis::RedisResult<()> {
    let mut pipe = redis::pipe();
    match plain {
        Plain::Counter => {
            for _ in 0..REQUESTS {
                pipe.cmd("INCR").arg(key).ignore();
            }
        }
        Plain::SortedSet => {
            for number in 0..REQUESTS {
                let time_ms = BEGIN_MS + number;
                pipe.cmd("ZADD")
                    .arg(key)
                    .arg(time_ms)
                    .arg(format!("{time_ms}-{number}"))
                    .ignore();
            }
        }
        Plain::Hash(level) => {
            pipe.cmd("HSET")
                .arg(key)
                .arg(level)
                .arg(0)
                .arg("ts")
                .arg(BEGIN_MS + REQUESTS)
                .ignore();
        }
    }
    pipe.cmd("PEXPIRE").arg(key).arg(WINDOW_MS).ignore();
    pipe.query_async(connection).await
}

async fn bytes_of(connection: &mut MultiplexedConnection, key: &str) -> redis::RedisResult<u64> {
    redis::cmd("MEMORY")
        .arg("USAGE")
        .arg(key)
        .arg("SAMPLES")
        .arg(0)
        .query_async(connection)
        .await
}

//! Checks the servers of the upstreams, each by itself. No request waits for one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, USER_AGENT};
use http::{HeaderValue, StatusCode};
use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::http::RequestHeader;
use pingora::protocols::http::v1::client::HttpSession;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};
use tracing::{info, warn};

use super::gateway::{Current, Gateway};
use super::peer::NO_AUTHORITIES;
use super::pool::{Member, Pool};
use crate::check::outcome::Statuses;
use crate::clock::monotonic_now;
use crate::config::{Health, Probe, Upstream};

/// The most answers that only say that another comes.
const INFORMATIONAL_MAX: usize = 8;

/// Checks all servers that are to be checked, by the configuration in force. Never returns; dropped, it checks none.
pub(super) async fn watch(current: Current) {
    let mut options = ConnectorOptions::new(1);
    options.ca_file = Some(NO_AUTHORITIES.to_owned());
    let connector = Arc::new(TransportConnector::new(Some(options)));
    loop {
        let gateway = current.get();
        let mut checks = JoinSet::new();
        for (index, upstream) in gateway.config.upstreams.iter().enumerate() {
            let (Some(health), Some(pool)) = (&upstream.health, gateway.pools.get(index)) else {
                continue;
            };
            // An earlier check may have come out since it was put together.
            pool.refresh();
            for member in pool.members() {
                checks.spawn(check(
                    Subject {
                        gateway: Arc::clone(&gateway),
                        index,
                        member,
                    },
                    health.clone(),
                    Arc::clone(&connector),
                ));
            }
        }
        gateway.show_health();
        drop(gateway);
        // The checks of what was in force end with the set.
        current.changed().await;
    }
}

/// An address of a server that is checked.
struct Subject {
    gateway: Arc<Gateway>,
    /// The position of its upstream.
    index: usize,
    member: Member,
}

impl Subject {
    fn upstream(&self) -> Option<(&Upstream, &Pool)> {
        let upstream = self.gateway.config.upstreams.get(self.index)?;
        Some((upstream, self.gateway.pools.get(self.index)?))
    }
}

async fn check(subject: Subject, health: Health, connector: Arc<TransportConnector>) {
    let Some((upstream, pool)) = subject.upstream() else {
        return;
    };
    let Member { stop, condition } = &subject.member;
    loop {
        if let Some(due) = condition.due() {
            sleep_until(due.into()).await;
        }
        let failure = match timeout(
            health.timeout,
            probe(&subject.member, upstream, pool, &health.probe, &connector),
        )
        .await
        {
            Ok(outcome) => outcome.err(),
            Err(_) => Some(Failure::TooLate(health.timeout)),
        };
        let due = monotonic_now() + jittered(health.interval);
        let changed = condition.note(failure.is_none(), &health, due);
        let (name, server, address) = (&upstream.name, pool.server(*stop), stop.address);
        match (changed, &failure) {
            (None, _) => continue,
            (Some(_), None) => {
                info!(upstream = %name, server, %address, "the server passes its checks: it gets requests again");
            }
            (Some(_), Some(failure)) => {
                warn!(upstream = %name, server, %address, error = %failure, "the server fails its checks: it gets no requests");
            }
        }
        pool.refresh();
        subject.gateway.show_health();
    }
}

/// Why a check failed.
enum Failure {
    /// It was not over in time.
    TooLate(Duration),
    /// There was no answer.
    NoAnswer(Box<pingora::Error>),
    /// It was another than expected.
    Status(Option<StatusCode>),
}

impl From<Box<pingora::Error>> for Failure {
    fn from(error: Box<pingora::Error>) -> Self {
        Self::NoAnswer(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLate(limit) => write!(f, "not over within {limit:?}"),
            Self::NoAnswer(error) => write!(f, "{error}"),
            Self::Status(Some(status)) => write!(f, "it answered {}", status.as_u16()),
            Self::Status(None) => f.write_str("it answered with no status"),
        }
    }
}

async fn probe(
    member: &Member,
    upstream: &Upstream,
    pool: &Pool,
    probe: &Probe,
    connector: &TransportConnector,
) -> Result<(), Failure> {
    let stream = connector.new_stream(&pool.peer(member.stop)).await?;
    let Probe::Get(path, expect) = probe else {
        return Ok(());
    };
    let mut head = RequestHeader::build("GET", path.as_bytes(), None)?;
    let host = match &upstream.host_header {
        Some(host) => host.clone(),
        None => HeaderValue::from_str(pool.authority(member.stop))
            .unwrap_or(HeaderValue::from_static("localhost")),
    };
    head.insert_header(HOST, host)?;
    head.insert_header(USER_AGENT, "tollgate")?;
    head.insert_header(http::header::CONNECTION, "close")?;
    let mut session = HttpSession::new(stream);
    session.write_request_header(Box::new(head)).await?;
    let status = answered(&mut session).await?;
    if is_expected(status, expect) {
        Ok(())
    } else {
        Err(Failure::Status(status))
    }
}

/// The status of the answer proper.
async fn answered(session: &mut HttpSession) -> pingora::Result<Option<StatusCode>> {
    for _ in 0..INFORMATIONAL_MAX {
        session.read_response().await?;
        let status = session.get_status();
        if !status.is_some_and(|status| status.is_informational()) {
            return Ok(status);
        }
    }
    Ok(None)
}

fn is_expected(status: Option<StatusCode>, expect: &Statuses) -> bool {
    status.is_some_and(|status| expect.contains(status.as_u16()))
}

/// Give or take a tenth: servers that were started together are not checked together for ever.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(fastrand::f64().mul_add(0.2, 0.9))
}

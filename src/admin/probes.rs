//! Metrics and probes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;

use crate::record::metrics::Families;
use crate::shed::Load;
use crate::store::limiter::Limiter;
use crate::store::valkey::ValkeyStore;

const TEXT: &str = "text/plain; charset=utf-8";
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers `/livez`, `/readyz`, `/healthz` and the path of the metrics.
pub struct Probes {
    metrics: Arc<Families>,
    limiter: Arc<Limiter>,
    load: Load,
    ready: Arc<AtomicBool>,
    metrics_path: Box<str>,
}

impl Probes {
    /// `ready` turns false once the gateway is told to stop.
    #[must_use]
    pub const fn new(
        metrics: Arc<Families>,
        limiter: Arc<Limiter>,
        load: Load,
        ready: Arc<AtomicBool>,
        metrics_path: Box<str>,
    ) -> Self {
        Self {
            metrics,
            limiter,
            load,
            ready,
            metrics_path,
        }
    }

    /// What is answered to a path. The store never makes the gateway unready: the policies say what to do then.
    fn answer(&self, path: &str, verbose: bool) -> (StatusCode, &'static str, Vec<u8>) {
        match path {
            "/livez" | "/healthz" => (StatusCode::OK, TEXT, b"ok\n".to_vec()),
            "/readyz" => self.readiness(verbose),
            path if path == &*self.metrics_path => self.exposition(),
            _ => (StatusCode::NOT_FOUND, TEXT, b"not found\n".to_vec()),
        }
    }

    /// The metrics, with the gauges as they stand now.
    fn exposition(&self) -> (StatusCode, &'static str, Vec<u8>) {
        let keys = self.limiter.local().len();
        self.metrics
            .local_keys
            .set(i64::try_from(keys).unwrap_or(i64::MAX));
        for (gauges, counts) in [
            (&self.metrics.load_requests, self.load.requests()),
            (
                &self.metrics.load_limits,
                self.load.limits().unwrap_or_default(),
            ),
        ] {
            let [in_flight, unanswered] = gauges;
            in_flight.set(counts.in_flight.into());
            unanswered.set(counts.unanswered.into());
        }
        let up = self.limiter.shared().is_none_or(ValkeyStore::is_up);
        self.metrics.store_up.set(i64::from(up));
        let (closed, open) = self.limiter.shared().map_or((0, 0), ValkeyStore::servers);
        for (gauge, count) in self.metrics.store_nodes.iter().zip([closed, open]) {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let instances = self.limiter.shared().map_or(0, ValkeyStore::instances);
        self.metrics.store_instances.set(i64::from(instances));
        let (slots, restored) = self.limiter.shared().map_or((0, 0), ValkeyStore::held);
        let slots = i64::try_from(slots).unwrap_or(i64::MAX);
        self.metrics.store_slots.set(slots);
        let told = &self.metrics.store_slots_restored;
        told.inc_by(restored.saturating_sub(told.get()));
        match self.metrics.encode() {
            Ok(text) => (StatusCode::OK, EXPOSITION, text),
            Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, Vec::new()),
        }
    }

    fn readiness(&self, verbose: bool) -> (StatusCode, &'static str, Vec<u8>) {
        let ready = self.ready.load(Ordering::Relaxed);
        let status = if ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        let mut text = if ready { "ok\n" } else { "draining\n" }.to_owned();
        if verbose {
            let line = match self.limiter.shared().map(ValkeyStore::is_up) {
                None => "[+]store local\n",
                Some(true) => "[+]store ok\n",
                Some(false) => "[-]store down, policies decide without it\n",
            };
            text.push_str(line);
        }
        (status, TEXT, text.into_bytes())
    }
}

#[async_trait]
impl ServeHttp for Probes {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let head = session.req_header();
        let is_head = head.method == Method::HEAD;
        let (status, content_type, body) = if is_head || head.method == Method::GET {
            let verbose = head
                .uri
                .query()
                .is_some_and(|query| query.split('&').any(|part| part.starts_with("verbose")));
            self.answer(head.uri.path(), verbose)
        } else {
            (
                StatusCode::METHOD_NOT_ALLOWED,
                TEXT,
                b"GET or HEAD\n".to_vec(),
            )
        };
        let length = body.len();
        let mut response = Response::new(if is_head { Vec::new() } else { body });
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

//! The map of the house. A request goes through it in this order.

pub mod client;
pub mod request;
pub mod route;

pub mod check;
pub mod decide;
pub mod shed;
pub mod store;

pub mod answer;
pub mod record;

pub mod admin;
pub mod clock;
pub mod config;
pub mod proxy;
pub mod tls;

pub mod cli;

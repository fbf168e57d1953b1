mod answers;
mod client;
mod routes;

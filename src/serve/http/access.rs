//! Who may ask: holders of the key, and no other sites through a browser.

use crate::serve::Shared;
use crate::serve::protocol::ApiError;
use hyper::header::{AUTHORIZATION, HOST, ORIGIN};
use hyper::{HeaderMap, Uri};
use std::net::IpAddr;

/// Checks the key, if the server has one.
pub(super) fn check_key(headers: &HeaderMap, shared: &Shared) -> Result<(), ApiError> {
    let Some(key) = &shared.options.api_key else { return Ok(()) };
    let Some(value) = headers.get(AUTHORIZATION) else { return Err(ApiError::unauthorized(true)) };
    let given = value.as_bytes().split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
    let given = given.map(|(_, key)| key.trim_ascii()).unwrap_or_default();
    // Hashes are compared in constant time.
    if blake3::hash(given) == blake3::hash(key.as_bytes()) { Ok(()) } else { Err(ApiError::unauthorized(false)) }
}

/// Checks that a browser sends no request of another site: its origin is this server. A server on the loopback address
/// also takes no name but localhost, because another site's name can be made to lead here (DNS rebinding).
pub(super) fn check_site(headers: &HeaderMap, shared: &Shared) -> Result<(), ApiError> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let origin = headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or("null"));
    if let Some(origin) = origin
        && origin.split_once("://").map(|(_, authority)| authority) != host
    {
        return Err(ApiError::forbidden("requests of other sites are not allowed: the server sends no CORS headers"));
    }
    match host {
        Some(host) if shared.options.host.is_loopback() && !is_local(host) => {
            Err(ApiError::forbidden("this server listens on the loopback address: use http://localhost or 127.0.0.1"))
        }
        _ => Ok(()),
    }
}

/// Whether a host is an address or localhost, not a name from elsewhere.
fn is_local(host: &str) -> bool {
    let uri = host.parse::<Uri>().ok();
    let name = uri.as_ref().and_then(Uri::host).unwrap_or(host);
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.is_ok() || name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_are_local() {
        for host in ["127.0.0.1:8080", "[::1]:8080", "localhost", "LOCALHOST:1", "a.localhost:80", "10.0.0.1"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["example.com", "localhost.example.com:8080", "127.0.0.1.example.com", "", "a b"] {
            assert!(!is_local(host), "{host}");
        }
    }
}

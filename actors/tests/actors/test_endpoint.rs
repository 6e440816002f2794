//! Describes where the processes of a test meet.

use loongforge_actors::Meeting;
use loongforge_actors::launch::net::Security;
use loongforge_core::config::Address;
use std::time::Duration;

/// Returns a meeting in which everybody trusts everybody and the scheduler keeps no journal.
pub fn test_endpoint(address: Address) -> Meeting {
    Meeting {
        address,
        security: Security::plain("a"),
        config: "abc".into(),
        timeout: Duration::from_secs(60),
        shared_memory: true,
        store: None,
        journal: None,
    }
}

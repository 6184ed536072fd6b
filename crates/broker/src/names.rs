//! Names that the server makes up: for queues, consumers and replies.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// `prefix` and 22 characters that nobody can guess: 16 random bytes, as RabbitMQ writes them.
pub(crate) fn server_named(prefix: &str) -> String {
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the operating system gives random bytes");
    let mut name = prefix.to_owned();
    URL_SAFE_NO_PAD.encode_string(random, &mut name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_prefix_and_22_characters_and_differ() {
        let (a, b) = (server_named("amq.gen-"), server_named("amq.gen-"));
        assert_eq!(a.len(), 8 + 22);
        assert!(a.starts_with("amq.gen-") && a != b);
        assert!(!a.contains(['+', '/', '=']));
    }
}

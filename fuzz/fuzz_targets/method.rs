//! Any payload of a method frame, tables included: what is taken can be written and is then read as the same method.

#![no_main]

use amqp::{DecodeError, FrameDecoder, Method, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    match Method::decode(payload) {
        Ok(Method::Other(id, class)) => {
            let mut out = Default::default();
            encode::method(&mut out, 1, &class);
            let (frame, _) = FrameDecoder::new(u32::MAX).decode(&out).unwrap().unwrap();
            let again = Method::decode(frame.payload);
            // Compared as text: a NaN in a table is not equal to itself.
            assert_eq!(format!("{again:?}"), format!("{:?}", Ok::<_, DecodeError>(Method::Other(id, class))));
        }
        Ok(Method::Publish(publish)) => {
            let (exchange, key) = publish.envelope[1..].split_at(publish.exchange.len());
            assert_eq!((exchange, &key[1..]), (publish.exchange.as_bytes(), publish.routing_key.as_bytes()));
        }
        Ok(method) => assert_eq!(method.id().class, 60),
        Err(DecodeError::Exception(exception)) => {
            assert!(exception.whole_connection && exception.reply_text().len() <= 255);
        }
        Err(DecodeError::Drop { reason, .. }) => assert!(!reason.is_empty()),
    }
});

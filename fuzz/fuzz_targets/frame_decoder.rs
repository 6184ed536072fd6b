//! Any bytes at the front of the reader's buffer: a frame, a wait for more, or a refusal that fits the wire, and all
//! three agree with each other.

#![no_main]

use amqp::FrameDecoder;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let decoder = FrameDecoder::new(4096);
    let needed = decoder.needed(input);
    match decoder.decode(input) {
        Ok(Some((frame, consumed))) => {
            assert_eq!(needed, Some(consumed));
            assert_eq!(frame.payload.len() + amqp::FRAME_OVERHEAD_BYTES, consumed);
            assert_eq!(decoder.decode(&input[..consumed - 1]), Ok(None));
            assert_eq!(decoder.decode(&input[..consumed]), Ok(Some((frame, consumed))));
        }
        Ok(None) => assert!(needed.is_none_or(|needed| needed > input.len() && needed <= 4096 + 8)),
        Err(exception) => {
            assert!(exception.whole_connection && exception.reply_text().len() <= 255);
            assert!(needed.is_some_and(|needed| needed <= input.len()), "refused before its bytes were there");
        }
    }
});

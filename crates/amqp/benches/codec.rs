//! The codec's share of a message: what publish and deliver cost before anything is routed or stored.
//!
//! `cargo bench -p warrenmq-amqp`

use std::hint::black_box;

use amqp::{Assembler, FrameDecoder, FrameKind, Method, Outbox, PropertiesBuilder, RawValue, TableWriter, encode};
use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const ENVELOPE: &[u8] = b"\x00\x0borders.paid";
const BODY_SIZES: [usize; 2] = [16, 1024];

fn publish_payload() -> Vec<u8> {
    [b"\0\x3c\0\x28\0\0".as_slice(), ENVELOPE, &[0]].concat()
}

/// Persistent, with the properties that client libraries set.
fn properties() -> Vec<u8> {
    let mut headers = TableWriter::new();
    headers.put("tenant", RawValue::LongStr(b"a-7"));
    headers.put("attempt", RawValue::I32(1));
    PropertiesBuilder::new()
        .set_content_type(b"application/json")
        .set_headers_raw(&headers.finish())
        .set_delivery_mode(2)
        .set_message_id(b"0b7b2f7e-7d3c-4f5c-a8c6-2f4a2f0a6f53")
        .build()
}

fn header_payload(body_size: usize, properties: &[u8]) -> Vec<u8> {
    [b"\0\x3c\0\0".as_slice(), &(body_size as u64).to_be_bytes(), properties].concat()
}

fn decode(c: &mut Criterion) {
    let payload = publish_payload();
    c.bench_function("decode/publish method", |b| {
        b.iter(|| black_box(Method::decode(black_box(&payload)).is_ok()));
    });
    for (name, properties) in
        [("none", vec![0, 0]), ("delivery-mode", vec![0x10, 0, 2]), ("four and two headers", properties())]
    {
        let payload = header_payload(16, &properties);
        c.bench_function(&format!("decode/content header, properties: {name}"), |b| {
            b.iter(|| black_box(amqp::ContentHeader::decode(black_box(&payload)).is_ok()));
        });
    }
}

/// Three frames, found in the reader's buffer and assembled.
fn whole_publish(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode/whole publish");
    for body_size in BODY_SIZES {
        let mut outbox = Outbox::new();
        let payload = publish_payload();
        outbox.buffer().extend_from_slice(&[1, 0, 1, 0, 0, 0, payload.len() as u8]);
        outbox.buffer().extend_from_slice(&payload);
        outbox.buffer().extend_from_slice(&[0xCE]);
        outbox.content(1, 131_072, &[0x10, 0, 2], &Bytes::from(vec![b'x'; body_size]));
        let stream = outbox.buffer().to_vec();
        let decoder = FrameDecoder::new(131_072);
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("{body_size} bytes"), |b| {
            b.iter(|| {
                let mut assembler = Assembler::new();
                let mut rest = black_box(stream.as_slice());
                while let Ok(Some((frame, consumed))) = decoder.decode(rest) {
                    match frame.kind {
                        FrameKind::Method => {
                            black_box(Method::decode(frame.payload).is_ok());
                            assembler.publish_started();
                        }
                        FrameKind::Header => _ = black_box(assembler.header(frame.payload)),
                        _ => _ = black_box(assembler.body(frame.payload)),
                    }
                    rest = &rest[consumed..];
                }
                assert!(assembler.is_idle() && rest.is_empty());
            });
        });
    }
}

fn deliver(c: &mut Criterion) {
    let mut group = c.benchmark_group("encode/deliver");
    let consumer_tag = "amq.ctag-LkSz3d8s5sOqIu4cN5nVzA";
    for body_size in BODY_SIZES {
        let body = Bytes::from(vec![b'x'; body_size]);
        let mut outbox = Outbox::new();
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("{body_size} bytes"), |b| {
            b.iter(|| {
                encode::deliver_method(outbox.buffer(), 1, consumer_tag, black_box(77), false, black_box(ENVELOPE));
                outbox.content(1, 131_072, black_box(&[0x10, 0, 2]), &body);
                // As when the socket takes what was gathered in a turn.
                if outbox.len() > 60 * 1024 {
                    let written = outbox.len();
                    outbox.advance(written);
                }
            });
        });
    }
    group.finish();
    let mut outbox = Outbox::new();
    c.bench_function("encode/ack", |b| {
        b.iter(|| {
            encode::ack(outbox.buffer(), 1, black_box(77), false);
            if outbox.len() > 60 * 1024 {
                let written = outbox.len();
                outbox.advance(written);
            }
        });
    });
}

criterion_group!(codec, decode, whole_publish, deliver);
criterion_main!(codec);

//! Values of field tables as JSON, and back.

use amqp::{AMQPValue, FieldArray, FieldTable};
use serde_json::{Map, Number, Value};

use crate::topology::type_name;

/// A table as an object: what definitions have.
#[must_use]
pub fn object(table: &FieldTable) -> Value {
    Value::Object(table.inner().iter().map(|(name, value)| (name.to_string(), plain(value))).collect())
}

/// A table as a list of `[name, type, value]`: what listings have, since the types of numbers matter to who compares arguments.
#[must_use]
pub fn triples(table: &FieldTable) -> Value {
    let triple = |(name, value): (&amqp::ShortString, &AMQPValue)| {
        Value::Array(vec![name.to_string().into(), type_name(value).into(), typed(value)])
    };
    Value::Array(table.inner().iter().map(triple).collect())
}

fn typed(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::FieldTable(table) => triples(table),
        AMQPValue::FieldArray(items) => {
            let pair = |item| Value::Array(vec![type_name(item).into(), typed(item)]);
            Value::Array(items.as_slice().iter().map(pair).collect())
        }
        other => plain(other),
    }
}

fn plain(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(v) => (*v).into(),
        AMQPValue::ShortShortInt(v) => (*v).into(),
        AMQPValue::ShortShortUInt(v) => (*v).into(),
        AMQPValue::ShortInt(v) => (*v).into(),
        AMQPValue::ShortUInt(v) => (*v).into(),
        AMQPValue::LongInt(v) => (*v).into(),
        AMQPValue::LongUInt(v) => (*v).into(),
        AMQPValue::LongLongInt(v) => (*v).into(),
        AMQPValue::Timestamp(v) => (*v).into(),
        AMQPValue::Float(v) => Number::from_f64(f64::from(*v)).map_or(Value::Null, Value::Number),
        AMQPValue::Double(v) => Number::from_f64(*v).map_or(Value::Null, Value::Number),
        AMQPValue::DecimalValue(v) => {
            let value = f64::from(v.value) / 10f64.powi(i32::from(v.scale));
            Number::from_f64(value).map_or(Value::Null, Value::Number)
        }
        AMQPValue::ShortString(v) => v.as_str().into(),
        AMQPValue::LongString(v) => String::from_utf8_lossy(v.as_bytes()).into(),
        AMQPValue::ByteArray(v) => String::from_utf8_lossy(v.as_slice()).into(),
        AMQPValue::FieldArray(items) => Value::Array(items.as_slice().iter().map(plain).collect()),
        AMQPValue::FieldTable(table) => object(table),
        AMQPValue::Void => Value::Null,
    }
}

/// A table from an object: whole numbers become 64-bit integers, others doubles.
#[must_use]
pub fn table(object: &Map<String, Value>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in object {
        if name.len() <= u8::MAX.into() {
            table.insert(name.as_str().into(), from_json(value));
        }
    }
    table
}

fn from_json(value: &Value) -> AMQPValue {
    match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(v) => AMQPValue::Boolean(*v),
        Value::Number(v) => match v.as_i64() {
            Some(v) => AMQPValue::LongLongInt(v),
            None => AMQPValue::Double(v.as_f64().unwrap_or_default()),
        },
        Value::String(v) => AMQPValue::LongString(v.as_str().into()),
        Value::Array(items) => AMQPValue::FieldArray(FieldArray::from(items.iter().map(from_json).collect::<Vec<_>>())),
        Value::Object(fields) => AMQPValue::FieldTable(table(fields)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_come_back_as_they_were() {
        let value = json!({"a": 1, "b": "x", "c": [true, null, {"d": -2.5}], "e": {}});
        let Value::Object(fields) = &value else { unreachable!() };
        assert_eq!(object(&table(fields)), value);
    }

    #[test]
    fn triples_name_the_types() {
        let mut table = FieldTable::default();
        table.insert("n".into(), AMQPValue::LongInt(5));
        table.insert("t".into(), AMQPValue::LongString("x".into()));
        assert_eq!(triples(&table), json!([["n", "signedint", 5], ["t", "longstr", "x"]]));
    }
}

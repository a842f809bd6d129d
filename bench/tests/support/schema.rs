//! As much of JSON Schema (2020-12) as our schemas use.

use serde_json::{Map, Value};

/// Returns everything in `value` that is not as `schema` says.
pub(crate) fn faults(root: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let target = root.pointer(name.trim_start_matches('#'));
        return faults(
            root,
            target.expect("the reference has a target"),
            value,
            place,
        );
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let fits = |choice| faults(root, choice, value, place).is_empty();
        return fault(!choices.iter().any(fits), place, "fits no choice");
    }
    let mut found = fault(!has_type(&schema["type"], value), place, "has another type");
    match value {
        Value::Object(fields) => found.extend(object(root, schema, fields, place)),
        Value::Array(items) => {
            let each = items.iter().enumerate();
            found.extend(each.flat_map(|(n, item)| {
                faults(root, &schema["items"], item, &format!("{place}/{n}"))
            }));
        }
        Value::Number(number) => {
            let least = schema["minimum"].as_f64();
            let low = least.is_some_and(|least| number.as_f64().is_some_and(|n| n < least));
            found.extend(fault(low, place, "is too small"));
        }
        _ => {}
    }
    found
}

fn object(root: &Value, schema: &Value, fields: &Map<String, Value>, place: &str) -> Vec<String> {
    let required = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let missing = required.filter(|name| !fields.contains_key(*name));
    let mut found: Vec<String> = missing
        .map(|name| format!("{place}: `{name}` is missing"))
        .collect();
    for (name, value) in fields {
        let inside = format!("{place}/{name}");
        match (&schema["properties"][name], &schema["additionalProperties"]) {
            (Value::Null, Value::Object(other)) => {
                found.extend(faults(root, &Value::Object(other.clone()), value, &inside));
            }
            (Value::Null, _) => found.push(format!("{inside}: is unknown")),
            (known, _) => found.extend(faults(root, known, value, &inside)),
        }
    }
    found
}

fn has_type(wanted: &Value, value: &Value) -> bool {
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => false,
    };
    match wanted {
        Value::String(name) => is(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(is),
        _ => true,
    }
}

fn fault(is_one: bool, place: &str, what: &str) -> Vec<String> {
    is_one
        .then(|| format!("{place}: {what}"))
        .into_iter()
        .collect()
}

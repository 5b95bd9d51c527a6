use tfrecord::Summary;
use tfrecord::protobuf::SummaryMetadata;
use tfrecord::protobuf::summary::Value;
use tfrecord::protobuf::summary_metadata::PluginData;

/// The plugin of TensorBoard that shows hyper-parameters beside the last values of the scalars.
const PLUGIN: &str = "hparams";
/// The tag under which the plugin looks for the hyper-parameters of a run.
const SESSION_START: &str = "_hparams_/session_start_info";

/// The hyper-parameters as the start of a session, the plugin's word for a run.
///
/// `start_time` is in seconds since 1970. The plugin's messages are not among the generated types, so they are encoded
/// here; their definition is `tensorboard/plugins/hparams/plugin_data.proto` and `google/protobuf/struct.proto`.
pub(super) fn session_start(hparams: &toml::Table, group_name: &str, start_time: f64) -> Summary {
    let mut flat = Vec::new();
    flatten("", hparams, &mut flat);

    let mut info = Message::default();
    for (name, value) in &flat {
        let mut entry = Message::default();
        entry.bytes(1, name.as_bytes());
        entry.bytes(2, &value_message(value).0);
        info.bytes(1, &entry.0);
    }
    info.bytes(4, group_name.as_bytes());
    info.double(5, start_time);

    let mut data = Message::default();
    data.bytes(3, &info.0);
    let plugin_data = PluginData {
        plugin_name: PLUGIN.to_owned(),
        content: data.0,
    };
    let metadata = SummaryMetadata {
        plugin_data: Some(plugin_data),
        ..SummaryMetadata::default()
    };
    let value = Value {
        tag: SESSION_START.to_owned(),
        metadata: Some(metadata),
        ..Value::default()
    };
    Summary { value: vec![value] }
}

/// Nested tables become names with dots: the plugin knows no nesting.
fn flatten<'a>(prefix: &str, table: &'a toml::Table, flat: &mut Vec<(String, &'a toml::Value)>) {
    for (key, value) in table {
        let name = format!("{prefix}{key}");
        match value {
            toml::Value::Table(table) => flatten(&format!("{name}."), table, flat),
            leaf => flat.push((name, leaf)),
        }
    }
}

/// A `google.protobuf.Value`. The plugin shows numbers, strings and switches; the rest is shown as TOML writes it.
fn value_message(value: &toml::Value) -> Message {
    let mut message = Message::default();
    match value {
        toml::Value::Integer(number) => message.double(2, *number as f64),
        toml::Value::Float(number) => message.double(2, *number),
        toml::Value::Boolean(on) => message.varint_field(4, u64::from(*on)),
        toml::Value::String(text) => message.bytes(3, text.as_bytes()),
        other => message.bytes(3, other.to_string().as_bytes()),
    }
    message
}

/// A message in protobuf's wire format.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.varint(field << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn varint_field(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_follow_the_wire_format() {
        // The examples of the protobuf encoding guide: field 1 = 150, field 2 = "testing".
        let mut message = Message::default();
        message.varint_field(1, 150);
        message.bytes(2, b"testing");
        assert_eq!(
            message.0,
            [&[0x08, 0x96, 0x01, 0x12, 0x07][..], b"testing"].concat()
        );
    }

    #[test]
    fn tables_are_flattened() {
        let hparams: toml::Table = "seed = 1\n[trainer]\nclip = { norm = 1.0 }\nlayers = [1, 2]"
            .parse()
            .unwrap();
        let mut flat = Vec::new();
        flatten("", &hparams, &mut flat);
        let names: Vec<_> = flat.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["seed", "trainer.clip.norm", "trainer.layers"]);
    }
}

//! Declares sections: their fields are the keys of the file, each with its default.

/// Declares a table of the file. Keys are in kebab case, and each is optional: an absent key has
/// the default after its `=`, or otherwise the default of its type. An unknown key is an error.
macro_rules! section {
    (
        $(#[$of_section:meta])*
        pub struct $section:ident {
            $($(#[$of_key:meta])* pub $key:ident: $type:ty $(= $default:expr)?,)*
        }
    ) => {
        $(#[$of_section])*
        #[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub struct $section {
            $($(#[$of_key])* pub $key: $type,)*
        }

        impl Default for $section {
            fn default() -> Self {
                Self {
                    $($key: section!(@ $($default)?),)*
                }
            }
        }
    };
    (@ $default:expr) => { $default };
    (@) => { Default::default() };
}
pub(crate) use section;

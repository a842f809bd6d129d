//! Macro that declares a section of the file.

/// Declares a section as a struct whose fields are its keys, in kebab case. An absent key has the
/// default after `=`, or the default of its type. An unknown key is an error.
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

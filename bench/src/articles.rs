//! Published articles whose experiments the suite repeats. A scenario's `[[then.source]]` refers to them by ID.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Article {
    pub id: &'static str,
    pub by: &'static str,
    pub title: &'static str,
    pub year: Option<u16>,
    pub link: &'static str,
}

pub const ARTICLES: &[Article] = &[
    Article {
        id: "bernat-1",
        by: "Vincent Bernat",
        title: "TLS termination: stunnel, nginx & stud",
        year: Some(2011),
        link: "https://vincent.bernat.ch/en/blog/2011-ssl-benchmark",
    },
    Article {
        id: "bernat-2",
        by: "Vincent Bernat",
        title: "TLS termination: stunnel, nginx & stud, round 2",
        year: Some(2011),
        link: "https://vincent.bernat.ch/en/blog/2011-ssl-benchmark-round2",
    },
    Article {
        id: "haproxy-ssl",
        by: "HAProxy Technologies",
        title: "Benchmarking SSL performance",
        year: None,
        link: "https://www.haproxy.com/blog/benchmarking_ssl_performance",
    },
    Article {
        id: "haproxy-shared-cache",
        by: "HAProxy Technologies",
        title: "Scaling out SSL",
        year: None,
        link: "https://www.haproxy.com/blog/scaling-out-ssl",
    },
    Article {
        id: "haproxy-maxconn",
        by: "HAProxy Technologies",
        title: "How to play with maxconn to avoid server slowness or crash",
        year: None,
        link: "https://www.haproxy.com/blog/play_with_maxconn_avoid_server_slowness_or_crash",
    },
    Article {
        id: "nginx-ktls",
        by: "NGINX",
        title: "Improving NGINX performance with kernel TLS and SSL_sendfile()",
        year: Some(2021),
        link: "https://www.nginx.com/blog/improving-nginx-performance-with-kernel-tls/",
    },
    Article {
        id: "tlsnappy",
        by: "Fedor Indutny",
        title: "Benchmarking TLS, TLSnappy and NGINX",
        year: Some(2012),
        link: "https://darksi.de/0.benchmarking-tls/",
    },
    Article {
        id: "langley",
        by: "Adam Langley, Google",
        title: "Overclocking SSL",
        year: Some(2010),
        link: "https://www.imperialviolet.org/2010/06/25/overclocking-ssl.html",
    },
];

impl Article {
    pub fn find(id: &str) -> Option<&'static Self> {
        ARTICLES.iter().find(|article| article.id == id)
    }

    /// Formats author, title and year for a report.
    pub fn name(&self) -> String {
        let year = self.year.map_or_else(String::new, |y| format!(", {y}"));
        format!("{}, \"{}\"{year}", self.by, self.title)
    }
}

//! Protocols in which the server speaks first, such as SMTP and IMAP over implicit TLS.

use std::io::{BufRead, BufReader, Write};

use becket_e2e::{Backend, Becket, Place, Shape, Tool};

/// As much of SMTP as a greeting and a farewell.
fn smtp() -> Backend {
    Backend::new(|mut stream| {
        write!(stream, "220 mail.example.org ready\r\n")?;
        for line in BufReader::new(stream.try_clone()?).lines() {
            match line?.to_uppercase().split(' ').next() {
                Some("QUIT") => return write!(stream, "221 bye\r\n"),
                Some("EHLO") => write!(stream, "250 mail.example.org\r\n")?,
                _ => write!(stream, "502 not here\r\n")?,
            }
        }
        Ok(())
    })
}

#[test]
#[ignore = "slow: .ci/run test"]
fn python_smtplib_talks_over_it() {
    let Some(python) = Tool::find("python3") else {
        return;
    };
    let place = Place::new();
    let backend = smtp();
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let script = "import smtplib, ssl, sys\n\
        context = ssl.create_default_context(cafile=sys.argv[3])\n\
        context.check_hostname = False\n\
        with smtplib.SMTP_SSL(sys.argv[1], int(sys.argv[2]), context=context) as mail:\n\
        \x20   print(mail.ehlo())\n";
    let (host, port) = (becket.web.ip().to_string(), becket.web.port().to_string());
    let run = python.run(["-c", script, &host, &port, &place.text("ca.pem")], "");
    assert_eq!(run.code, 0, "{}", run.all());
    assert!(
        run.stdout.contains("(250, b'mail.example.org')"),
        "{}",
        run.all()
    );
}

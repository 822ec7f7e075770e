"""The SPDX document of a release: every library in the wheel and the Debian packages."""

import datetime
import hashlib
from urllib.parse import quote

# What LibTorch's libraries are under, with what they carry inside; the Debian package has them.
TORCH_LICENCES = {
    "torch": "BSD-3-Clause",
    "oneMKL": "LicenseRef-Intel-Simplified-Software-License",
    "nvidia-cuda-runtime": "LicenseRef-NVIDIA-CUDA-EULA",
    "nvidia-cuda-cupti": "LicenseRef-NVIDIA-CUDA-EULA",
}


def time_of(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def package(name, version, licence, purl=None):
    entry = {
        "SPDXID": f"SPDXRef-{name}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": licence,
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
    }
    if purl is not None:
        entry["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                  "referenceLocator": purl}]
    return entry


def document(version, libraries, torch_packages, seconds):
    """A dictionary for JSON.

    libraries: (kind, Debian package, version, SPDX licence), kind "library" or "header";
    torch_packages: {name: version} of those in TORCH_LICENCES; seconds: the time of the release.
    """
    wheel = package("redco-lua-wheel", version, "Apache-2.0", f"pkg:pypi/redco-lua@{version}")
    debian = package("redco-lua-debian", version, "Apache-2.0", f"pkg:deb/redco-lua@{version}")
    packages, relationships = [wheel, debian], []

    def relate(one, kind, other):
        relationships.append({"spdxElementId": one, "relationshipType": kind,
                              "relatedSpdxElement": other})

    for described in (wheel, debian):
        relate("SPDXRef-DOCUMENT", "DESCRIBES", described["SPDXID"])
    for kind, name, its_version, licence in libraries:
        entry = package(name, its_version, licence, f"pkg:deb/debian/{name}@{quote(its_version)}")
        packages.append(entry)
        relate(wheel["SPDXID"], "CONTAINS", entry["SPDXID"])
        relate(debian["SPDXID"], "CONTAINS" if kind == "header" else "DEPENDS_ON", entry["SPDXID"])
    for name, licence in TORCH_LICENCES.items():
        its_version = torch_packages.get(name, "NOASSERTION")
        entry = package(name, its_version, licence)
        if name in torch_packages:
            entry = package(name, its_version, licence, f"pkg:pypi/{name}@{its_version}")
        packages.append(entry)
        relate(wheel["SPDXID"], "DEPENDS_ON", entry["SPDXID"])
        relate(debian["SPDXID"], "CONTAINS", entry["SPDXID"])

    own = sorted({word.strip("()") for entry in packages for word in entry["licenseDeclared"].split()
                  if word.startswith("LicenseRef-")})
    digest = hashlib.sha256(repr(packages).encode()).hexdigest()[:16]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"redco-lua-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/redco-lua-{version}-{digest}",
        "creationInfo": {"created": time_of(seconds).strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": ["Tool: cmake/wheel/make_wheel.py"]},
        "hasExtractedLicensingInfos": [
            {"licenseId": name,
             "extractedText": name[len("LicenseRef-"):].replace("-", " ") + ": the text is beside "
             "the libraries, in the licences of the wheel or in share/doc/redco-lua/copyright"}
            for name in own],
        "packages": packages,
        "relationships": relationships,
    }

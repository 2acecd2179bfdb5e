"""The jars of a Kafka broker, each with the SHA-256 that it must have.

A fixed list instead of a resolution at every installation: the same bytes run everywhere, nothing
that was altered on its way or on disk is ever executed, and a first start downloads 46 files
instead of walking hundreds of POMs. ``slf4j-simple`` is the one addition to what Kafka names:
without a logging binding a broker that cannot start says nothing.

To move to another version of Kafka, run ``python -m streams.local.kafka_jars VERSION`` and put
what it prints in place of the table and the total.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

KAFKA_VERSION = "4.3.0"

TOTAL_BYTES = 45_020_011

TABLE = """
[at.yawk.lz4]
lz4-java 1.10.2 252dabd586d22149a31661a8afc1a50747714eb1a298bd4a6e780c8c91a13866
[com.dynatrace.hash4j]
hash4j 0.22.0 23028a3fd006e530bf495f551083208187cafd8f80624d048eba56442f16a50e
[com.fasterxml.jackson.core]
jackson-annotations 2.21 53ca085f4a150f703f49e1aabd935bd03b43e1ea3d55d135438292af22cef56b
jackson-core 2.21.2 12e8655b100267b44d0f14d01b1f5082a5105e616174dc4307be1a761e92407b
jackson-databind 2.21.2 8c982f01f148d805f0aaac2339011244757e0df7c6ff8951f2fa3f433b8ed849
[com.fasterxml.jackson.dataformat]
jackson-dataformat-csv 2.21.2 682f8c7977e02a42748426bf54946e32e52e2f80b84b6642801ab12bd541368a
jackson-dataformat-yaml 2.21.2 d25551812fa0c14f37cabaa9401e63eadcea42ce36311183af5622d5bc8a1bc7
[com.fasterxml.jackson.datatype]
jackson-datatype-jdk8 2.21.2 e581bbf3fc5622d16b57366dd41e10fc56921fb202879de2ef487f87dd9b30e7
[com.github.ben-manes.caffeine]
caffeine 3.2.0 ec411dfdf0c03f25218648ce89861630b71680e5858a9a7278ebac8e55cab3d7
[com.github.luben]
zstd-jni 1.5.6-10 b6c3237e24b8252a5a9c3a0e1ae30ef8f323412e74bd358548b7a9e527d676df
[com.google.re2j]
re2j 1.8 7b52c72156dd7f98b3237a5b35c1d34fba381b21048c89208913ad80a45dfbd7
[com.typesafe.scala-logging]
scala-logging_2.13 3.9.6 0ad0c3f4d89d538b3b6c300158555e266aa69cf1b5f6522aba8b5bad238eb994
[com.yammer.metrics]
metrics-core 2.2.0 6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c
[commons-beanutils]
commons-beanutils 1.11.0 9e44ba68ec9a3f21286fa2a8bbb003b735c0f69101bb43144b79f4f8aaa74709
[commons-collections]
commons-collections 3.2.2 eeeae917917144a68a741d4c0dff66aa5c5c5fd85593ff217bced3fc8ca783b8
[commons-digester]
commons-digester 2.1 e0b2b980a84fc6533c5ce291f1917b32c507f62bcad64198fff44368c2196a3d
[commons-logging]
commons-logging 1.3.5 6d7a744e4027649fbb50895df9497d109f98c766a637062fe8d2eabbb3140ba4
[commons-validator]
commons-validator 1.10.1 ed74711a78d793ca37f6075e4a1e93d107233dfd20d0bb17e32bad88d38e56aa
[net.sf.jopt-simple]
jopt-simple 5.0.4 df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28
[net.sourceforge.argparse4j]
argparse4j 0.7.0 65ceb669d88f63306c680f8088bbf765bbca72d288a61a03703000076c3d3f56
[org.apache.kafka]
kafka-clients 4.3.0 97a5b492d4ad658fd2dfba969fa0e403c2e38c971fb1e083da4e391471925fc1
kafka-coordinator-common 4.3.0 245f2d1ebe0559efb7fc7615cda06f5c25b47e98d137a354a05cc50687821244
kafka-group-coordinator 4.3.0 98bf277fca9facf134a7599a5c13dc146b9fbaf5ce961dd412914d3ff9b44356
kafka-group-coordinator-api 4.3.0 c78dbb49e91bb0f735dc03d07a66f1cb1c0e1db4bf6c2d9a57811c744d93ca5b
kafka-metadata 4.3.0 4cf62c7bea64ff57ccd150ac457b02216e28801472caefd436377cbedd29a1c5
kafka-raft 4.3.0 7517424a299da3e9fcdeccd52058b3ca6e95a1ed7feb9a32c3e12836d02cff8d
kafka-server 4.3.0 4e94e517a4b1c86ee1d41401d0c394556880abba515c7ca4f4eb229a4673422c
kafka-server-common 4.3.0 f272a83ad222b2747635239cdb2601c0a3f83fc874b4a1adf104afb8daf66133
kafka-share-coordinator 4.3.0 3848748f35dfe8b3b8e39cc546d129e586b5e039f0d10459d4b0bf05cefdecaa
kafka-storage 4.3.0 9e13c0cd8de0bf1fc24cad5d498b21c6683815e771a7148c43fac79b6a515c79
kafka-storage-api 4.3.0 dd4e05a693dd9e546545a70cff6c36b4125fefd067df6126541e23156df315e6
kafka-tools-api 4.3.0 4794083021c84cb068f0865308791f076e66e609db5ba6f6aaed858aedacb926
kafka-transaction-coordinator 4.3.0 1f6cb1ebf449a6772ca22f7470b206a1845bd172fe64131848c80be7c13aa096
kafka_2.13 4.3.0 e3669cb733f657689f71cba145af51022f29cebba81d8bf69699274b46c70da8
[org.apache.logging.log4j]
log4j-api 2.25.4 c4b642a7f047275215de117e0e3847eb2c7711d84a0aa7433e7b3c096daf341d
log4j-core 2.25.4 10fee2c0485d54fa44ee75d314f6295508f7b932281873db61a91b88073200e6
[org.bitbucket.b_c]
jose4j 0.9.6 7314af50cde9c99e8eaf43eee617a23edcc6bb43036221064355094999d837ef
[org.hdrhistogram]
HdrHistogram 2.2.2 22d1d4316c4ec13a68b559e98c8256d69071593731da96136640f864fa14fad8
[org.jspecify]
jspecify 1.0.0 1fad6e6be7557781e4d33729d49ae1cdc8fdda6fe477bb0cc68ce351eafdfbab
[org.pcollections]
pcollections 4.0.2 2bbeef5797a241300c4f7513cd546239629ed7deda4fc0c31df90bb95f5f13ef
[org.scala-lang]
scala-library 2.13.18 4e85d96ff7bc7dc627985523c3541b9917aaa08e956391380c42db21a2c4e5a0
scala-reflect 2.13.18 6935ff1982b2ac93d695f15aa66921be2f602921277afe002f018fd8c7d6e29b
[org.slf4j]
slf4j-api 1.7.36 d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0
slf4j-simple 1.7.36 2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f
[org.xerial.snappy]
snappy-java 1.1.10.7 4c766cb3f855415ee734b2392949a0b6f12a60879334a74518deaf6270d32e36
[org.yaml]
snakeyaml 2.5 e6682acf1ace77508ef13649cbf4f8d09d2cf5457bdb61d25ffb6ac0233d78dd
"""


@dataclass(frozen=True)
class Jar:
    """One artifact of Maven Central."""

    group: str
    artifact: str
    version: str
    sha256: str  # of the file, hexadecimal

    @property
    def filename(self) -> str:
        """What Maven calls the file."""
        return f"{self.artifact}-{self.version}.jar"


def kafka_jars() -> tuple[Jar, ...]:
    """The rows of the table."""
    jars: list[Jar] = []
    group = ""
    for line in TABLE.split("\n"):
        if line.startswith("["):
            group = line.strip("[]")
        elif line:
            jars.append(Jar(group, *line.split()))
    return tuple(jars)


def _print_table(version: str) -> None:
    """Resolve a version of Kafka with jgo and print its table."""
    from jgo.maven import MavenContext

    with TemporaryDirectory() as directory:
        context = MavenContext(repo_cache=Path(directory))
        kafka = context.create_dependency(f"org.apache.kafka:kafka_2.13:{version}")
        kafka.scope = "compile"
        inputs, transitive = context.resolver.resolve([kafka])
        needed = [item for item in transitive if item.scope in ("compile", "runtime")]
        artifacts = [item.artifact for item in (*inputs, *needed)]
        binding = next(item.version for item in artifacts if item.artifactId == "slf4j-api")
        artifacts.append(
            context.project("org.slf4j", "slf4j-simple").at_version(binding).artifact()
        )
        groups: dict[str, list[str]] = {}
        total = 0
        for artifact in artifacts:
            data = Path(artifact.resolve()).read_bytes()
            total += len(data)
            row = f"{artifact.artifactId} {artifact.version} {hashlib.sha256(data).hexdigest()}"
            groups.setdefault(artifact.groupId, []).append(row)
    for group in sorted(groups):
        print(f"[{group}]", *sorted(groups[group]), sep="\n")
    print(f"TOTAL_BYTES = {total:_}")


if __name__ == "__main__":
    _print_table(sys.argv[1])
